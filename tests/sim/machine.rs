//! A computer with one cache directory: the computer outlives the process under test, is killed, loses power, and has a disk which
//! fails.
//!
//! Owns files, the lock, the faults and the moment of the crash. Does not own the operations on files (`files`) nor the interface for
//! the cache (`disk`).
//! Invariants: after the crash nothing done by the dead process has an effect; a file survives if the creation had
//! returned, and may or may not if the creation was interrupted.

#[path = "machine/checkpoint.rs"]
mod checkpoint;
#[path = "machine/files.rs"]
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use glidefs::testing::units::{ExportId, SectorRange};

use super::content::stamp_of;
use super::faults::{Crash, Faults, PowerCut, eio};
use super::file::{FRAME, File, SECTOR};
use super::rng::Rng;
use super::structure::{STRUCTURES, exports_of, structure};
use super::tally::{Event, Tally};

/// Number of a file, never used again.
pub type Inode = u64;

#[derive(Clone, Debug)]
pub struct Machine {
    rng: Rng,
    pub tally: Tally,
    /// Rates of failures in this life.
    pub faults: Faults,
    /// Syncs are answered and not carried out; proves that the oracle notices.
    pub syncs_lie: bool,
    /// Prints every change to the disk.
    pub trace: bool,
    /// Free bytes of the file system.
    pub free_bytes: u64,
    generation: u64,
    dead: bool,
    /// Changes to the disk until the crash.
    fuse: Option<u64>,
    crash: Crash,
    locked: bool,
    superblock: Option<Vec<u8>>,
    checkpoint: Option<Vec<u8>>,
    /// Number and id of each segment covered by the checkpoint under way.
    covers: Vec<(u32, u64)>,
    wrote_in_reused: bool,
    /// The process of this life knows nothing of checkpoints.
    is_older: bool,
    /// Number of the start which made the checkpoint.
    checkpoint_of: u32,
    /// Last start that the catalog counts, and a start begun.
    start: (u32, Option<u32>),
    names: BTreeMap<u32, Inode>,
    files: BTreeMap<Inode, File>,
    /// Names which a power cut may bring back.
    unlinked: BTreeMap<u32, Inode>,
    next_inode: Inode,
    ticks: u64,
    /// Injected failures of this life: writes and openings, syncs, reads.
    injected: [u64; 3],
    /// Sectors of exports with data on frames lost by the disk: reads may fail from then on.
    lost: BTreeSet<(ExportId, u64)>,
    /// A frame which describes others was lost.
    lost_structure: bool,
    /// Exports with data, perhaps, in a record whose header was lost; `None`: any export.
    hurt: Option<BTreeSet<ExportId>>,
    /// Pages are gone in this life.
    gone: bool,
}

/// A copy of the cache directory, made while no process used the directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    superblock: Option<Vec<u8>>,
    checkpoint: Option<Vec<u8>>,
    files: BTreeMap<u32, Vec<u8>>,
}

/// The outcome of one change to the disk.
enum Fate {
    Done,
    /// The crash comes in the middle of the change.
    Crashes,
    /// The process is dead already.
    Dead,
}

impl Machine {
    /// A computer with an empty cache directory.
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            tally: Tally::default(),
            faults: Faults::default(),
            syncs_lie: false,
            trace: false,
            free_bytes: 1 << 40,
            generation: 0,
            dead: false,
            fuse: None,
            crash: Crash::Kill,
            locked: false,
            superblock: None,
            checkpoint: None,
            covers: Vec::new(),
            wrote_in_reused: false,
            is_older: false,
            checkpoint_of: 0,
            start: (0, None),
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            unlinked: BTreeMap::new(),
            next_inode: 0,
            ticks: 0,
            injected: [0; 3],
            lost: BTreeSet::new(),
            lost_structure: false,
            hurt: Some(BTreeSet::new()),
            gone: false,
        }
    }

    /// Number of the process which may use the disk.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the crash has come.
    pub fn dead(&self) -> bool {
        self.dead
    }

    /// Lets the machine crash in the middle of a change to the disk, after `changes` other changes.
    pub fn arm(&mut self, changes: u64, crash: Crash) {
        self.fuse = Some(changes);
        self.crash = crash;
    }

    /// Crashes at once, unless a crash has come.
    pub fn crash_now(&mut self, crash: Crash) {
        if !self.dead {
            self.dead = true;
            self.crash = crash;
        }
    }

    /// Lets nothing fail and nothing crash.
    pub fn calm(&mut self) {
        self.faults = Faults { would_block: self.faults.would_block, ..Faults::default() };
        self.fuse = None;
    }

    pub fn copy(&self) -> Copy {
        let bytes = |(number, inode): (&u32, &Inode)| (*number, self.files[inode].live().to_vec());
        Copy {
            superblock: self.superblock.clone(),
            checkpoint: self.checkpoint.clone(),
            files: self.names.iter().map(bytes).collect(),
        }
    }

    /// Whether no cache was ever made in the directory.
    pub fn is_blank(&self) -> bool {
        self.superblock.is_none()
    }

    /// Puts `copy` in the place of the cache directory. Processes of earlier lives have no part in the copy.
    pub fn put(&mut self, copy: &Copy) {
        assert!(!self.locked && !self.dead, "a process uses the directory");
        self.generation += 1;
        self.superblock.clone_from(&copy.superblock);
        self.checkpoint.clone_from(&copy.checkpoint);
        self.names.clear();
        self.unlinked.clear();
        for (number, bytes) in &copy.files {
            self.next_inode += 1;
            let mut file = File::default();
            file.allocate(bytes.len());
            file.rot(|place| place.copy_from_slice(bytes));
            self.files.insert(self.next_inode, file);
            self.names.insert(*number, self.next_inode);
        }
    }

    /// Puts the segment files and the superblock of `copy` in the place of the cache directory's, and the count of starts in the
    /// catalog's. The checkpoint stays.
    pub fn put_without_checkpoint(&mut self, copy: &Copy, start: (u32, Option<u32>)) {
        let checkpoint = self.checkpoint.take();
        self.put(copy);
        self.checkpoint = checkpoint;
        self.start = start;
    }

    /// Lets an older program be the process of this life, or not.
    pub fn run_older(&mut self, is_older: bool) {
        self.is_older = is_older;
    }

    pub fn is_older(&self) -> bool {
        self.is_older
    }

    /// Last start that the catalog counts, and a start begun.
    pub fn start(&self) -> (u32, Option<u32>) {
        self.start
    }

    /// Process `generation` notes a start in the catalog.
    pub fn set_start(&mut self, generation: u64, start: (u32, Option<u32>)) -> io::Result<()> {
        match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => {
                if self.rng.coin() {
                    self.start = start;
                }
                return Err(eio());
            }
            Fate::Done => self.start = start,
        }
        Ok(())
    }

    /// Injected failures since the last reboot: writes and openings, syncs, reads.
    pub fn injected(&self) -> [u64; 3] {
        self.injected
    }

    /// Starts again after a crash, or after a clean stop, and returns the crash.
    pub fn reboot(&mut self) -> Option<Crash> {
        let crash = self.dead.then_some(self.crash);
        if let Some(crash) = crash {
            self.tally.hit(if crash == Crash::Kill { Event::Kill } else { Event::PowerCut });
        }
        if crash == Some(Crash::PowerCut) {
            let cut = PowerCut::random(&mut self.rng);
            self.lose_power(cut);
        }
        // In a file used again, a bad frame may be in the place of a record.
        let used = self.names.values().map(|inode| &self.files[inode]).filter(|file| file.has_lost());
        let named: Vec<ExportId> =
            used.flat_map(|file| file.live().chunks_exact(FRAME).flat_map(exports_of)).collect();
        if let Some(hurt) = &mut self.hurt {
            hurt.extend(named);
        }
        self.generation += 1;
        self.dead = false;
        self.fuse = None;
        self.locked = false;
        self.injected = [0; 3];
        self.gone = false;
        self.forget_covers();
        crash
    }

    /// Whether pages are gone since the last reboot: a kill may leave the state of a power cut then.
    pub fn has_gone_pages(&self) -> bool {
        self.gone
    }

    /// Whether the disk lost content of `range` of `export`.
    pub fn may_fail(&self, export: ExportId, range: SectorRange) -> bool {
        self.lost.range((export, range.start())..(export, range.end())).next().is_some()
    }

    pub fn has_lost(&self) -> bool {
        self.lost_structure || !self.lost.is_empty()
    }

    /// Whether a record of `export` may be lost with the header of a record.
    pub fn is_hurt(&self, export: ExportId) -> bool {
        self.hurt.as_ref().is_none_or(|hurt| hurt.contains(&export))
    }

    /// Makes a frame of segment file `number` unreadable until the next write.
    pub fn lose_frame(&mut self, number: u32, frame: u32) {
        let (inode, frame) = (self.names[&number], usize::try_from(frame).unwrap());
        for bytes in self.file(inode).lose(frame) {
            self.note_lost(&bytes);
        }
        let file = self.file(inode);
        let beside = [frame.checked_sub(1), frame.checked_add(1)];
        let alone = beside.into_iter().flatten().all(|next| file.is_readable(next * FRAME, FRAME))
            && !file.alone_describes_another(frame);
        let frames = self.files[&inode].live().chunks_exact(FRAME);
        let named: Vec<ExportId> = frames.flat_map(exports_of).collect();
        match &mut self.hurt {
            Some(hurt) if alone => hurt.extend(named),
            hurt => *hurt = None,
        }
    }

    /// Makes all frames readable again.
    pub fn heal(&mut self) {
        self.files.values_mut().for_each(File::heal);
    }

    fn note_lost(&mut self, frame: &[u8]) {
        self.lost_structure |= structure(frame) != Event::DataUnread;
        self.lost.extend(frame.as_chunks::<SECTOR>().0.iter().filter_map(stamp_of));
    }

    /// Makes a frame unreadable: of a kind and a file picked by chance.
    pub fn lose_some_frame(&mut self) {
        let files: Vec<u32> = self.names.keys().copied().collect();
        if files.is_empty() {
            return;
        }
        let number = files[self.rng.index(files.len())];
        let kind = STRUCTURES[self.rng.index(STRUCTURES.len())].1;
        let frames = self.files[&self.names[&number]].live().chunks_exact(FRAME);
        let frames = (0u32..).zip(frames).filter(|(_, frame)| frame.iter().any(|byte| *byte != 0));
        let frames: Vec<u32> =
            frames.filter(|(_, frame)| structure(frame) == kind).map(|(at, _)| at).collect();
        if !frames.is_empty() {
            // No other header repeats the content of the last one.
            let last = kind == Event::RecordUnread && self.rng.coin();
            let index = if last { frames.len() - 1 } else { self.rng.index(frames.len()) };
            let frame = frames[index];
            if self.trace {
                eprintln!("    segment {number} frame {frame} cannot be read any more: {kind:?}");
            }
            self.lose_frame(number, frame);
        }
    }

    /// The computer after a power cut at this moment that took everything without a sync.
    pub fn without_power(&self) -> Self {
        let mut copy = self.clone();
        copy.lose_power(PowerCut { kept: 0, torn: 0 });
        copy.reboot();
        copy
    }

    fn lose_power(&mut self, cut: PowerCut) {
        let (mut newest_kept, mut oldest_lost) = (None, None::<u64>);
        for file in self.files.values_mut() {
            // Some files fare differently from the others.
            let cut = if self.rng.permille(200) { PowerCut::random(&mut self.rng) } else { cut };
            let (kept, lost) = file.cut_power(cut, &mut self.rng, &mut self.tally);
            newest_kept = newest_kept.max(kept);
            oldest_lost = oldest_lost.into_iter().chain(lost).min();
        }
        if let (Some(kept), Some(lost)) = (newest_kept, oldest_lost)
            && kept > lost
        {
            self.tally.hit(Event::FramesReordered);
        }
        for (number, inode) in std::mem::take(&mut self.unlinked) {
            if self.rng.coin() && !self.names.contains_key(&number) {
                self.names.insert(number, inode);
            }
        }
    }

    fn fate(&mut self, generation: u64) -> Fate {
        if self.dead || generation != self.generation {
            return Fate::Dead;
        }
        match &mut self.fuse {
            Some(0) => {
                self.dead = true;
                Fate::Crashes
            }
            Some(left) => {
                *left -= 1;
                Fate::Done
            }
            None => Fate::Done,
        }
    }

    fn alive(&self, generation: u64) -> io::Result<()> {
        if self.dead || generation != self.generation { Err(eio()) } else { Ok(()) }
    }

    /// Takes the lock for process `generation`.
    pub fn lock(&mut self, generation: u64) -> io::Result<bool> {
        self.alive(generation)?;
        Ok(!std::mem::replace(&mut self.locked, true))
    }

    pub fn unlock(&mut self, generation: u64) {
        if generation == self.generation {
            self.locked = false;
        }
    }

    pub fn superblock(&mut self, generation: u64) -> io::Result<Option<Vec<u8>>> {
        self.alive(generation)?;
        if self.rng.permille(10 * self.faults.read) {
            self.tally.hit(Event::SuperblockUnread);
            self.injected[2] += 1;
            return Err(eio());
        }
        Ok(self.superblock.clone())
    }

    /// Replaces the superblock, from outside of any process.
    pub fn set_superblock(&mut self, bytes: Vec<u8>) {
        self.superblock = Some(bytes);
    }

    /// Replaces the superblock for process `generation`.
    pub fn replace_superblock(&mut self, generation: u64, bytes: &[u8]) -> io::Result<()> {
        match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => {
                self.tally.hit(Event::CrashInSuperblock);
                if self.rng.coin() {
                    self.superblock = Some(bytes.to_vec());
                }
                return Err(eio());
            }
            Fate::Done => self.superblock = Some(bytes.to_vec()),
        }
        Ok(())
    }

    fn file(&mut self, inode: Inode) -> &mut File {
        self.files.get_mut(&inode).unwrap()
    }
}
