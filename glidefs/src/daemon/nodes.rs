//! The NUMA nodes of CPUs, each asked of the kernel once.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::locks::MutexExt;
use crate::worker::cpus::node_of;

/// The nodes known so far, by CPU.
#[derive(Default)]
pub(super) struct Nodes(Mutex<HashMap<u64, Option<u64>>>);

impl Nodes {
    /// The node of `cpu`, if the kernel tells.
    pub fn of(&self, cpu: u64) -> Option<u64> {
        let find = || usize::try_from(cpu).ok().and_then(node_of);
        *self.0.lock_whole().entry(cpu).or_insert_with(find)
    }
}
