//! The exports in memory.
//!
//! Owns which names, export ids and device numbers are in use. Invariants: one entry per name; an export id is used once; an export keeps
//! its device number, also while detached, so that `/dev/ublkbN` stays the same disk; numbers of deleted exports are used again, lowest
//! first.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::ExportName;
use super::entry::ExportEntry;
use super::error::RouterError;

/// The exports in memory.
#[derive(Debug)]
pub(super) struct Exports {
    by_name: BTreeMap<ExportName, Arc<ExportEntry>>,
    pub numbers: Numbers,
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

/// The numbers in use, each with the number of exports that use the number. More than one export can: the kernel may give a
/// device another number than requested, which a detached export has already.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    used: BTreeMap<u32, u32>,
    /// No number below this is free.
    free_from: u32,
}

impl Numbers {
    /// Takes the lowest free number.
    pub fn take_lowest(&mut self) -> u32 {
        let mut number = self.free_from;
        while self.used.contains_key(&number) {
            number += 1;
        }
        self.take(number);
        self.free_from = number;
        number
    }

    /// Adds a user of `number`.
    pub fn take(&mut self, number: u32) {
        *self.used.entry(number).or_default() += 1;
    }

    /// Removes a user of `number`.
    pub fn release(&mut self, number: u32) {
        if let Some(users) = self.used.get_mut(&number) {
            *users -= 1;
            if *users == 0 {
                self.used.remove(&number);
                self.free_from = self.free_from.min(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lowest_number_that_nobody_uses_is_taken(steps in prop::collection::vec((0_u8..3, 0_u32..8), 0..64)) {
            let mut numbers = Numbers::default();
            let mut model: Vec<u32> = Vec::new();
            for (step, number) in steps {
                match step {
                    0 => {
                        let lowest = (0..=64).find(|n| !model.contains(n)).unwrap();
                        prop_assert_eq!(numbers.take_lowest(), lowest);
                        model.push(lowest);
                    }
                    1 => {
                        numbers.take(number);
                        model.push(number);
                    }
                    _ => {
                        numbers.release(number);
                        if let Some(at) = model.iter().position(|&n| n == number) {
                            model.swap_remove(at);
                        }
                    }
                }
            }
        }
    }
}
