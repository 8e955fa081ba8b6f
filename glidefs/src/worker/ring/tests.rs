//! The ring against real files, pipes and a model.

mod commands;
mod model;
mod ownership;
mod reactor;
mod round_trips;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::reactor::{Promise, Reactor};
use super::{Completion, Event, Kind, Memory, Op, Options, Ring, Target};
use crate::buffer::{Pool, Slot};
use crate::observe::io::WorkerStats;

impl From<Arc<File>> for Target {
    fn from(file: Arc<File>) -> Self {
        Self::Open(file)
    }
}

impl From<Arc<OwnedFd>> for Target {
    fn from(file: Arc<OwnedFd>) -> Self {
        Self::Open(file)
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Heap(bytes)
    }
}

impl From<Vec<Slot>> for Memory {
    fn from(slots: Vec<Slot>) -> Self {
        Self::Slots(slots)
    }
}

impl Memory {
    fn heap(self) -> Vec<u8> {
        let Self::Heap(bytes) = self else { panic!("{self:?}") };
        bytes
    }

    fn slots(self) -> Vec<Slot> {
        let Self::Slots(slots) = self else { panic!("{self:?}") };
        slots
    }
}

impl Op {
    fn read(target: impl Into<Target>, offset: u64, memory: impl Into<Memory>) -> Self {
        Self::new(Kind::Read, target.into(), offset, memory.into())
    }

    fn sync_data(target: impl Into<Target>) -> Self {
        Self::new(Kind::SyncData, target.into(), 0, Memory::None)
    }

    fn writev(target: impl Into<Target>, offset: u64, slots: Vec<Slot>) -> Self {
        Self::new(Kind::Writev, target.into(), offset, slots.into())
    }

    fn writev_fixed(target: impl Into<Target>, offset: u64, slots: Vec<Slot>) -> Self {
        Self::new(Kind::WritevFixed, target.into(), offset, slots.into())
    }
}

const BLOCK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// A pool and its counters.
fn pool(slots: usize) -> (Pool, Arc<WorkerStats>) {
    let stats = Arc::new(WorkerStats::default());
    (Pool::new(slots, Arc::clone(&stats)).unwrap(), stats)
}

fn ring<C>(options: &Options) -> Ring<C> {
    Ring::new(options).unwrap()
}

/// A reactor whose ring has `pool` registered.
fn reactor(pool: &Pool) -> Reactor {
    let mut ring: Ring<Promise> = ring(&Options::default());
    ring.register_arena(pool).unwrap();
    Reactor::new(ring)
}

fn slot(pool: &Pool, bytes: usize, fill: u8) -> Slot {
    let mut slot = pool.try_acquire(bytes).unwrap();
    slot.fill(fill);
    slot
}

/// A new file without a name in `directory`.
fn file_in(directory: &Path, flags: i32) -> Arc<File> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE | flags).open(directory);
    Arc::new(file.unwrap_or_else(|error| panic!("no file can be made in {}: {error}", directory.display())))
}

fn file() -> Arc<File> {
    Arc::new(tempfile::tempfile().unwrap())
}

fn pipe() -> (Arc<OwnedFd>, Arc<OwnedFd>) {
    let (read, write) = nix::unistd::pipe().unwrap();
    (Arc::new(read), Arc::new(write))
}

/// Waits until `count` operations have completed.
fn wait<C>(ring: &mut Ring<C>, count: usize) -> Vec<Completion<C>> {
    let mut events = Vec::new();
    while events.len() < count {
        ring.submit_and_wait(Some(PATIENCE)).unwrap();
        let before = events.len();
        ring.drain(&mut events);
        assert!(events.len() > before, "only {before} of {count} operations completed");
    }
    let operation = |event| match event {
        Event::Operation(completion) => completion,
        Event::Command { token, .. } => panic!("command {token} completed, and none was pushed"),
    };
    events.into_iter().map(operation).collect()
}

/// The completions of this moment, without a longer wait.
fn completed_by_now<C>(ring: &mut Ring<C>) -> Vec<Event<C>> {
    let mut events = Vec::new();
    ring.submit_and_wait(Some(Duration::from_millis(20))).unwrap();
    ring.drain(&mut events);
    events
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}
