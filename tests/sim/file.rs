//! One file of the fake disk: the view of the page cache, the content of the medium, and every version in between.
//!
//! Does not own names of files or the time of failures. Invariant: `live` is the content for readers; `durable` is the content after a
//! power cut if the kernel wrote nothing back by itself; for each frame written since the frame was last made durable,
//! `dirty` holds every content of the frame, oldest first.

use std::collections::{BTreeMap, BTreeSet};

use super::faults::PowerCut;
use super::rng::Rng;
use super::structure::is_record;
use super::tally::{Event, Tally};

/// Bytes in a page of the page cache.
pub const FRAME: usize = 4096;
/// Bytes which the medium writes as one.
pub const SECTOR: usize = 512;

/// One content of a frame.
#[derive(Clone, Debug)]
struct Version {
    /// Time of the write, counted over all files.
    tick: u64,
    bytes: Box<[u8]>,
}

#[derive(Clone, Debug, Default)]
pub struct File {
    live: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeMap<usize, Vec<Version>>,
    /// Frames which cannot be read until the next write.
    lost: BTreeSet<usize>,
    /// Versions lost in a power cut, of frames not written since: a record header left on the medium may describe
    /// such a version.
    taken: BTreeMap<usize, Vec<Box<[u8]>>>,
    /// Frames of which a power cut took a record header, and which hold the same wrong bytes since. A start writes such bytes
    /// again.
    without_header: BTreeSet<usize>,
}

impl File {
    /// Makes the file at least `len` bytes long, durably; new bytes are zero.
    pub fn allocate(&mut self, len: usize) {
        let len = len.max(self.live.len());
        self.live.resize(len, 0);
        self.durable.resize(len, 0);
    }

    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// The content for readers.
    pub fn live(&self) -> &[u8] {
        &self.live
    }

    /// Changes bytes both in memory and on the medium, as rot would.
    pub fn rot(&mut self, change: impl Fn(&mut [u8])) {
        change(&mut self.live);
        change(&mut self.durable);
    }

    /// Puts `bytes` into the page cache at `offset`, a multiple of 512.
    pub fn write(&mut self, offset: usize, bytes: &[u8], tick: u64) {
        if bytes.is_empty() {
            return;
        }
        let frames = offset / FRAME..(offset + bytes.len()).div_ceil(FRAME);
        let before = self.live[frames.start * FRAME..frames.end * FRAME].to_vec();
        self.live[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (frame, before) in frames.zip(before.chunks_exact(FRAME)) {
            // The medium puts another sector in the place of a written one.
            self.lost.remove(&frame);
            self.taken.remove(&frame);
            let bytes: Box<[u8]> = self.live[frame * FRAME..(frame + 1) * FRAME].into();
            if bytes[..] != *before {
                self.without_header.remove(&frame);
            }
            self.dirty.entry(frame).or_default().push(Version { tick, bytes });
        }
    }

    /// Makes a frame unreadable, and returns the contents which a reader may look for in the frame.
    pub fn lose(&mut self, frame: usize) -> Vec<Box<[u8]>> {
        self.lost.insert(frame);
        let is_last = (frame + 1) * FRAME == self.live.len();
        // Without the last frame nobody knows whether a footer left by the power cut was true.
        let taken = self.taken.iter().filter(|(at, _)| is_last || **at == frame);
        let taken = taken.flat_map(|(_, versions)| versions.iter().cloned());
        [self.live[frame * FRAME..(frame + 1) * FRAME].into()].into_iter().chain(taken).collect()
    }

    /// Whether the record in front of `frame`, a record header, has no other header: a power cut took the record's own.
    pub fn alone_describes_another(&self, frame: usize) -> bool {
        let is_header = |frame: usize| is_record(&self.live[frame * FRAME..(frame + 1) * FRAME]);
        let before = (0..frame).rev().find(|at| self.without_header.contains(at) || is_header(*at));
        is_header(frame) && before.is_some_and(|at| self.without_header.contains(&at))
    }

    /// Makes all frames readable again.
    pub fn heal(&mut self) {
        self.lost.clear();
    }

    /// Whether some frame cannot be read.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Whether `len` bytes at `offset` can be read.
    pub fn is_readable(&self, offset: usize, len: usize) -> bool {
        self.lost.range(offset / FRAME..(offset + len).div_ceil(FRAME)).next().is_none()
    }

    /// Makes everything written so far durable.
    pub fn sync(&mut self) {
        for (frame, mut versions) in std::mem::take(&mut self.dirty) {
            if let Some(last) = versions.pop() {
                self.durable[frame * FRAME..(frame + 1) * FRAME].copy_from_slice(&last.bytes);
            }
        }
    }

    /// Makes the last content of `len` bytes at `offset` durable.
    pub fn sync_part(&mut self, offset: usize, len: usize) {
        for frame in offset / FRAME..(offset + len).div_ceil(FRAME) {
            if let Some(last) = self.dirty.remove(&frame).and_then(|mut versions| versions.pop()) {
                self.durable[frame * FRAME..(frame + 1) * FRAME].copy_from_slice(&last.bytes);
            }
        }
    }

    /// As [`Self::sync`] on a medium which fails: some frames become durable, all others are no longer dirty, so no
    /// later sync will write the others. Readers still see those frames, or, of `gone` in 1000, the content of the
    /// medium. Returns the contents hidden from readers.
    pub fn sync_badly(&mut self, rng: &mut Rng, gone: u32) -> Vec<Box<[u8]>> {
        let lost = rng.within(0..1001);
        let mut gone_frames = Vec::new();
        for (frame, mut versions) in std::mem::take(&mut self.dirty) {
            let place = frame * FRAME..(frame + 1) * FRAME;
            let Some(last) = versions.pop() else { continue };
            if rng.next() % 1000 >= lost {
                self.durable[place].copy_from_slice(&last.bytes);
            } else if rng.permille(gone) {
                self.live[place.clone()].copy_from_slice(&self.durable[place]);
                gone_frames.push(last.bytes);
            }
        }
        gone_frames
    }

    /// Loses the page cache. Returns ticks of the newest frame kept and the oldest frame lost.
    pub fn cut_power(
        &mut self,
        cut: PowerCut,
        rng: &mut Rng,
        tally: &mut Tally,
    ) -> (Option<u64>, Option<u64>) {
        let (mut newest_kept, mut oldest_lost) = (None::<u64>, None::<u64>);
        for (frame, versions) in std::mem::take(&mut self.dirty) {
            self.taken.insert(frame, versions.iter().map(|version| version.bytes.clone()).collect());
            let place = &mut self.durable[frame * FRAME..(frame + 1) * FRAME];
            let first_tick = versions.first().map_or(0, |version| version.tick);
            let is_without = |place: &[u8]| {
                versions.iter().any(|version| is_record(&version.bytes) && *version.bytes != *place)
            };
            if !rng.permille(cut.kept) {
                tally.hit(Event::FrameLost);
                oldest_lost = Some(oldest_lost.map_or(first_tick, |tick| tick.min(first_tick)));
                if is_without(place) {
                    self.without_header.insert(frame);
                }
                continue;
            }
            let pick = |rng: &mut Rng| {
                // The newest version is the likeliest: the kernel writes back the version of the moment.
                if rng.coin() { versions.len() - 1 } else { rng.index(versions.len()) }
            };
            if rng.permille(cut.torn) {
                tally.hit(Event::FrameTorn);
                for sector in (0..FRAME).step_by(SECTOR) {
                    if rng.coin() {
                        let bytes = &versions[pick(rng)].bytes[sector..sector + SECTOR];
                        place[sector..sector + SECTOR].copy_from_slice(bytes);
                    }
                }
            } else {
                tally.hit(Event::FrameKept);
                let version = &versions[pick(rng)];
                place.copy_from_slice(&version.bytes);
                newest_kept = newest_kept.max(Some(version.tick));
            }
            if is_without(place) {
                self.without_header.insert(frame);
            }
        }
        self.live.clone_from(&self.durable);
        (newest_kept, oldest_lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: PowerCut = PowerCut { kept: 1000, torn: 0 };
    const NONE: PowerCut = PowerCut { kept: 0, torn: 0 };

    fn file(frames: usize) -> File {
        let mut file = File::default();
        file.allocate(frames * FRAME);
        file
    }

    fn cut(file: &mut File, cut: PowerCut, seed: u64) {
        file.cut_power(cut, &mut Rng::new(seed), &mut Tally::default());
    }

    #[test]
    fn what_was_synced_survives_every_power_cut() {
        for seed in 0..50 {
            let mut file = file(4);
            file.write(FRAME, &[1; 2 * FRAME], 1);
            file.sync();
            let how = PowerCut::random(&mut Rng::new(seed));
            cut(&mut file, how, seed);
            assert_eq!(file.live()[FRAME..3 * FRAME], [1; 2 * FRAME]);
        }
    }

    #[test]
    fn what_was_not_synced_may_be_lost_or_kept() {
        let mut lost = file(2);
        lost.write(0, &[1; FRAME], 1);
        cut(&mut lost, NONE, 1);
        assert_eq!(lost.live()[..FRAME], [0; FRAME]);
        let mut kept = file(2);
        kept.write(0, &[1; FRAME], 1);
        cut(&mut kept, ALL, 1);
        assert_eq!(kept.live()[..FRAME], [1; FRAME]);
    }

    #[test]
    fn a_later_frame_may_survive_an_earlier_one_and_both_are_reported() {
        let half = PowerCut { kept: 500, torn: 0 };
        let reordered = (0..50).any(|seed| {
            let mut file = file(2);
            file.write(0, &[1; FRAME], 1);
            file.write(FRAME, &[2; FRAME], 2);
            let ticks = file.cut_power(half, &mut Rng::new(seed), &mut Tally::default());
            let reordered = file.live()[0] == 0 && file.live()[FRAME] == 2;
            assert_eq!(reordered, ticks == (Some(2), Some(1)));
            reordered
        });
        assert!(reordered);
    }

    #[test]
    fn a_torn_frame_mixes_whole_sectors_of_its_versions_and_nothing_else() {
        let mut mixed = false;
        for seed in 0..50 {
            let mut file = file(1);
            file.write(0, &[1; FRAME], 1);
            file.write(SECTOR, &[2; SECTOR], 2);
            file.write(0, &[3; FRAME], 3);
            cut(&mut file, PowerCut { kept: 1000, torn: 1000 }, seed);
            for sector in file.live().chunks(SECTOR) {
                assert!(sector.iter().all(|byte| *byte == sector[0] && *byte <= 3));
            }
            mixed |= file.live().chunks(SECTOR).any(|sector| sector[0] != file.live()[0]);
        }
        assert!(mixed);
    }

    #[test]
    fn pages_that_are_gone_after_a_failed_sync_read_as_what_the_medium_holds() {
        let mut seen = [false; 2];
        for seed in 0..50 {
            let mut file = file(8);
            file.write(0, &[1; 8 * FRAME], 1);
            let gone = file.sync_badly(&mut Rng::new(seed), 500);
            let old = file.live().chunks(FRAME).filter(|frame| frame[0] == 0).count();
            assert_eq!(gone.len(), old);
            assert!(gone.iter().all(|frame| frame[..] == [1; FRAME]));
            seen[usize::from(old > 0)] = true;
        }
        assert_eq!(seen, [true, true]);
    }

    #[test]
    fn a_frame_that_cannot_be_read_can_be_read_once_it_was_written() {
        let mut file = file(4);
        file.lose(1);
        assert!(
            file.is_readable(0, FRAME)
                && !file.is_readable(0, 2 * FRAME)
                && file.is_readable(2 * FRAME, FRAME)
        );
        file.write(FRAME, &[1; FRAME], 1);
        assert!(file.is_readable(0, 4 * FRAME));
    }

    /// A frame which begins as a record header does.
    fn header(of: u8) -> [u8; FRAME] {
        let mut frame = [of; FRAME];
        frame[..8].copy_from_slice(b"GLIDEREC");
        frame
    }

    #[test]
    fn a_header_describes_another_alone_until_the_place_of_the_other_gets_other_bytes() {
        let mut seen = [false; 2];
        for seed in 0..50 {
            let mut file = file(6);
            file.write(FRAME, &[header(1), [1; FRAME], header(2)].concat(), 1);
            assert!(!file.alone_describes_another(3), "nothing is lost");
            cut(&mut file, PowerCut { kept: 500, torn: 0 }, seed);
            let [first, second] = [1, 3].map(|frame| is_record(&file.live()[frame * FRAME..]));
            seen[usize::from(first)] |= second;
            assert_eq!(file.alone_describes_another(3), second && !first);
            assert!(!file.alone_describes_another(2), "data describes nothing");
            let same = file.live()[FRAME..2 * FRAME].to_vec();
            file.write(FRAME, &same, 2);
            assert_eq!(file.alone_describes_another(3), second && !first, "the same bytes are no header");
            file.write(FRAME, &header(3), 3);
            assert!(!file.alone_describes_another(3));
        }
        assert_eq!(seen, [true, true]);
    }

    #[test]
    fn a_sync_that_failed_is_not_made_good_by_the_next_one() {
        let lost = (0..50).any(|seed| {
            let mut file = file(8);
            file.write(0, &[1; 8 * FRAME], 1);
            assert!(file.sync_badly(&mut Rng::new(seed), 0).is_empty());
            assert_eq!(file.live()[..], [1; 8 * FRAME]);
            file.sync();
            cut(&mut file, ALL, seed);
            file.live().contains(&0)
        });
        assert!(lost);
    }
}
