//! The exports in memory.
//!
//! Owns which names, export ids and device numbers are in use. Invariants: one entry per name; an export id is used once.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::ExportName;
use super::entry::ExportEntry;
use super::error::RouterError;
use super::numbers::Numbers;

/// The exports in memory.
#[derive(Debug)]
pub(super) struct Exports {
    by_name: BTreeMap<ExportName, Arc<ExportEntry>>,
    numbers: Numbers,
    next_id: u32,
    exports_max: usize,
}

impl Exports {
    /// No exports, and room for `exports_max`. `next_id` is the id for the next export.
    pub fn new(next_id: u32, exports_max: usize) -> Self {
        Self { by_name: BTreeMap::new(), numbers: Numbers::default(), next_id, exports_max }
    }

    pub fn find(&self, name: &str) -> Option<Arc<ExportEntry>> {
        self.by_name.get(name).cloned()
    }

    /// All exports, in the order of their names.
    pub fn all(&self) -> Vec<Arc<ExportEntry>> {
        self.by_name.values().cloned().collect()
    }

    /// At most `max` exports behind the name `after`, in the order of their names.
    pub fn after(&self, after: Option<&str>, max: usize) -> Vec<Arc<ExportEntry>> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_name
            .range::<str, _>((begin, Bound::Unbounded))
            .take(max)
            .map(|(_, entry)| Arc::clone(entry))
            .collect()
    }

    /// Refuses an export more than allowed.
    pub fn check_room(&self) -> Result<(), RouterError> {
        if self.by_name.len() < self.exports_max {
            return Ok(());
        }
        Err(RouterError::TooMany { max: self.exports_max })
    }

    /// An export id that was never used.
    pub fn take_id(&mut self) -> Result<u32, RouterError> {
        let id = self.next_id;
        self.next_id = id.checked_add(1).ok_or(RouterError::IdsExhausted)?;
        Ok(id)
    }

    /// The lowest free device number, which is in use from now on.
    pub fn take_lowest_number(&mut self) -> u32 {
        self.numbers.take_lowest()
    }

    /// Notes that an export uses `number`.
    pub fn take_number(&mut self, number: u32) {
        self.numbers.take(number);
    }

    /// Notes that an export uses the device number `to` instead of `from`.
    pub fn renumber(&mut self, from: u32, to: u32) {
        self.numbers.take(to);
        self.numbers.release(from);
    }

    /// Adds an entry, or replaces the entry of the same name.
    pub fn insert(&mut self, entry: Arc<ExportEntry>) {
        self.by_name.insert(entry.name.clone(), entry);
    }

    /// Removes an entry and frees the export's device number.
    pub fn remove(&mut self, name: &ExportName, number: u32) {
        self.by_name.remove(name);
        self.numbers.release(number);
    }
}
