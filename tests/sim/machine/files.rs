//! Segment files of the fake computer: made, removed, written, synced and read, with the faults and the crash drawn for each operation.
//!
//! Owns the outcome of an operation. Does not own the bytes (`file`) nor the rates of faults (`machine`).

use std::io;

use super::super::faults::{Crash, eio, enospc};
use super::super::file::{FRAME, File, SECTOR};
use super::super::structure::{entries_of, structure};
use super::super::tally::Event;
use super::{Fate, Inode, Machine};

impl Machine {
    /// Numbers of the files in the directory.
    pub fn segments(&self, generation: u64) -> io::Result<Vec<u32>> {
        self.alive(generation)?;
        // Not in ascending order: the interface promises no order.
        Ok(self.names.keys().rev().copied().collect())
    }

    /// Opens or makes segment file `number`.
    pub fn open(&mut self, generation: u64, number: u32, bytes: u64) -> io::Result<Inode> {
        let bytes = usize::try_from(bytes).unwrap();
        self.alive(generation)?;
        let complete = |machine: &Self, inode: &Inode| machine.files[inode].len() >= bytes;
        let fails = self.rng.permille(self.faults.open);
        if fails {
            self.tally.hit(Event::OpenEio);
            self.injected[0] += 1;
        }
        if let Some(&inode) = self.names.get(&number).filter(|inode| complete(self, inode)) {
            return if fails { Err(eio()) } else { Ok(inode) };
        }
        let crashes = match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => true,
            Fate::Done => false,
        };
        if crashes {
            self.tally.hit(Event::CrashInCreate);
        }
        // A failure or a crash leaves no file, an empty one or a whole one.
        let done = if crashes || fails { self.rng.within(0..3) } else { 2 };
        if done >= 1 && !self.names.contains_key(&number) {
            self.next_inode += 1;
            self.files.insert(self.next_inode, File::default());
            self.names.insert(number, self.next_inode);
            self.unlinked.remove(&number);
        }
        if done == 2 {
            self.file(self.names[&number]).allocate(bytes);
        }
        if crashes || fails { Err(enospc()) } else { Ok(self.names[&number]) }
    }

    /// Removes segment file `number`. A process with the file open keeps the content.
    pub fn remove(&mut self, generation: u64, number: u32) -> io::Result<()> {
        let crashes = match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => true,
            Fate::Done => false,
        };
        if crashes && self.rng.coin() {
            return Err(eio());
        }
        let inode = self.names.remove(&number).ok_or(io::ErrorKind::NotFound)?;
        if crashes {
            self.unlinked.insert(number, inode);
            return Err(eio());
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`, or a part where the write fails.
    pub fn write(&mut self, generation: u64, inode: Inode, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let offset = self.check_place(inode, offset, bytes.len());
        let crashes = match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => true,
            Fate::Done => false,
        };
        let fails = self.rng.permille(self.faults.write);
        let written = if crashes || fails { self.part_of(bytes.len()) } else { bytes.len() };
        self.ticks += 1;
        let tick = self.ticks;
        if self.trace {
            let frame = offset / FRAME;
            eprintln!("    file {inode} frame {frame}: {written} of {} bytes written", bytes.len());
            bytes.chunks_exact(FRAME).flat_map(entries_of).for_each(|entry| eprintln!("      {entry}"));
        }
        self.file(inode).write(offset, &bytes[..written], tick);
        if offset > 0 {
            self.note_write(inode);
        }
        if crashes {
            if written > 0 && written < bytes.len() {
                let kill = self.crash == Crash::Kill;
                self.tally.hit(if kill { Event::AppendCutByKill } else { Event::AppendCutByPower });
            }
            return Err(eio());
        }
        if !fails {
            return Ok(());
        }
        self.injected[0] += 1;
        if written == bytes.len() {
            self.tally.hit(Event::WriteWholeButFailed);
        } else if written > 0 {
            self.tally.hit(Event::WriteShort);
        }
        if self.rng.coin() {
            self.tally.hit(Event::WriteEio);
            Err(eio())
        } else {
            self.tally.hit(Event::WriteEnospc);
            Err(enospc())
        }
    }

    /// As [`Self::write`] past the page cache: what was written is durable.
    pub fn write_through(
        &mut self,
        generation: u64,
        inode: Inode,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.write(generation, inode, offset, bytes)?;
        // A frame of zeroes is a trial.
        if bytes.iter().any(|byte| *byte != 0) {
            self.tally.hit(Event::AppendStable);
        }
        if !self.syncs_lie {
            let offset = self.check_place(inode, offset, bytes.len());
            self.file(inode).sync_part(offset, bytes.len());
        }
        Ok(())
    }

    /// Nothing, all, or any number of sectors.
    fn part_of(&mut self, len: usize) -> usize {
        match self.rng.index(6) {
            0 => 0,
            1 => len,
            2 => len.min(FRAME),
            _ => self.rng.index(len / SECTOR + 1) * SECTOR,
        }
    }

    /// Makes earlier writes to the file durable.
    pub fn sync(&mut self, generation: u64, inode: Inode) -> io::Result<()> {
        match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            // Which frames had been written back is for the power cut to choose.
            Fate::Crashes => {
                self.tally.hit(Event::CrashInSync);
                return Err(eio());
            }
            Fate::Done => {}
        }
        if self.rng.permille(self.faults.sync) {
            self.tally.hit(Event::SyncEio);
            self.injected[1] += 1;
            if self.trace {
                eprintln!("    file {inode} sync fails");
            }
            let (mut rng, gone) = (self.rng.fork(), self.faults.gone);
            for frame in self.file(inode).sync_badly(&mut rng, gone) {
                self.tally.hit(Event::PageGone);
                self.gone = true;
                self.hurt = None;
                self.note_lost(&frame);
            }
            return Err(eio());
        }
        if self.trace {
            eprintln!("    file {inode} synced");
        }
        if !self.syncs_lie {
            self.file(inode).sync();
        }
        Ok(())
    }

    pub fn read(&mut self, generation: u64, inode: Inode, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.alive(generation)?;
        if self.rng.permille(self.faults.read) {
            self.tally.hit(Event::ReadEio);
            self.injected[2] += 1;
            // A frame which fails alone again and again is given up.
            let at = usize::try_from(offset).unwrap();
            if buffer.len() == FRAME
                && let Some(frame) = self.files[&inode].live().get(at..at + FRAME).map(<[u8]>::to_vec)
            {
                self.note_lost(&frame);
                self.hurt = None;
            }
            return Err(eio());
        }
        let offset = usize::try_from(offset).unwrap();
        assert!(
            offset.is_multiple_of(FRAME) && buffer.len().is_multiple_of(FRAME),
            "a read that is not aligned"
        );
        let last = (self.files[&inode].len() / FRAME).saturating_sub(1);
        for frame in offset / FRAME..(offset + buffer.len()) / FRAME {
            if frame <= last && !self.files[&inode].is_readable(frame * FRAME, FRAME) {
                let event = structure(&self.files[&inode].live()[frame * FRAME..(frame + 1) * FRAME]);
                let copy = event == Event::HeaderUnread && frame == last;
                self.tally.hit(if copy { Event::CopyUnread } else { event });
                return Err(eio());
            }
        }
        let bytes = self.file(inode).live().get(offset..offset + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    /// As [`Self::read`], or `false` when the reader would have to wait.
    pub fn read_now(
        &mut self,
        generation: u64,
        inode: Inode,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<bool> {
        self.alive(generation)?;
        if self.rng.permille(self.faults.would_block) {
            self.tally.hit(Event::ReadWouldBlock);
            buffer.fill(0xee);
            return Ok(false);
        }
        self.read(generation, inode, offset, buffer).map(|()| true)
    }

    /// The bytes of segment file `number` for readers, if the file exists.
    pub fn bytes_of(&self, number: u32) -> Option<&[u8]> {
        self.names.get(&number).map(|inode| self.files[inode].live())
    }

    /// Changes bytes of segment file `number` on the medium.
    pub fn rot(&mut self, number: u32, change: impl Fn(&mut [u8])) {
        let inode = self.names[&number];
        self.file(inode).rot(change);
    }

    fn check_place(&mut self, inode: Inode, offset: u64, len: usize) -> usize {
        let offset = usize::try_from(offset).unwrap();
        assert!(offset.is_multiple_of(FRAME) && len.is_multiple_of(FRAME), "a write that is not aligned");
        assert!(offset + len <= self.file(inode).len(), "a write beyond the end of a segment file");
        offset
    }
}
