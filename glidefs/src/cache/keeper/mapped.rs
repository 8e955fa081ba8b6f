//! The stretches of segments in memory for READs: which stretches, and when one makes room for another.
//!
//! Does not own the mappings (`log/mapping`) nor the counts (`log/heat`). Invariants: no more frames are locked than the options allow;
//! a stretch is unlocked when no READ can look at it any more; a segment of which a stretch could not be locked is not locked any further, so a
//! bad sector is met once.
//!
//! Locking a frame that is in memory costs about what a READ of the frame gains. So a stretch is locked when within seconds as many frames
//! of it were read the other way as it has: data that is written and not read costs nothing. Where another stretch has to make room, twice
//! as many READs are asked for: READs all over a large cache would lock one stretch after the other. The stretch that was locked first makes
//! room, but for those in which READs found something since they were last asked for their place (a clock).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::log::heat::each;
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::mapping::Mapping;
use crate::cache::shared::Shared;
use crate::observe::repeat::Repeat;

/// Time from the end of one look at the counts to the next look.
const PAUSE: Duration = Duration::from_millis(100);
/// A count is halved once in so many looks, so about every 10 seconds.
const LOOKS_TO_HALVE: usize = 100;
/// How many READs of a frame are worth another frame's place.
const READS_FOR_A_PLACE: u32 = 2;
/// Most frames locked in one look: 64 MiB.
const FRAMES_A_LOOK: u32 = 1 << 14;

/// A stretch of a segment in one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    number: u32,
    segment_id: u64,
    stretch: u32,
}

impl Stretch {
    fn bit(self) -> u64 {
        1 << self.stretch
    }

    /// The segment, while it is in this use.
    fn info(self, shared: &Shared) -> Option<&SegmentInfo> {
        Some(shared.table.get(self.number)).filter(|info| info.segment_id() == self.segment_id)
    }

    /// The mapping that READs find, while the segment is in this use.
    fn mapping(self, shared: &Shared) -> Option<Arc<Mapping>> {
        Option::clone(&self.info(shared)?.mapping())
    }
}

/// A mapping that READs do not find any more, though one may still look at its stretches.
#[derive(Debug)]
struct Leaving {
    mapping: Arc<Mapping>,
    /// The stretches to be unlocked, a bit each.
    stretches: u64,
}

/// The stretches that are locked.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// In the order in which the stretches are asked for their place.
    locked: VecDeque<Stretch>,
    /// In the order of leaving. A READ that has one of them may look at what left later.
    leaving: VecDeque<Leaving>,
    /// Ids of the segments, by number, of which a stretch could not be locked, or had other bytes than were acknowledged.
    failed: HashMap<u32, u64>,
    look_at: Duration,
    /// Number of this look, of [`LOOKS_TO_HALVE`].
    look: usize,
    /// So many stretches may still be asked for their place in this look: each once, or none in use would keep its place.
    asks: usize,
    failures: Repeat,
}

impl Mapped {
    /// Looks at the counts at times, and locks what was read often. Reads the disk for frames that are not in memory.
    pub fn step(&mut self, shared: &Shared) {
        if shared.mapped_frames_max == 0 || shared.clock.now() < self.look_at {
            return;
        }
        self.forget(shared);
        self.look = (self.look + 1) % LOOKS_TO_HALVE;
        shared.heat.halve(self.look, LOOKS_TO_HALVE);
        self.asks = self.locked.len();
        let mut left = FRAMES_A_LOOK;
        for (number, stretches) in shared.heat.take() {
            let segment_id = shared.table.get(number).segment_id();
            for stretch in each(stretches) {
                if left == 0 || shared.is_keeper_needed() {
                    shared.heat.announce(number, 1 << stretch);
                } else if self.lock_if_worth(shared, Stretch { number, segment_id, stretch }) {
                    left = left.saturating_sub(shared.heat.stretches().frames());
                }
            }
        }
        shared.heat.set_price(self.price(shared));
        shared.set_mapped(!self.locked.is_empty());
        // Locking may have waited for the disk.
        self.look_at = shared.clock.now().saturating_add(PAUSE);
    }

    /// Forgets the stretches of segments that were freed, and of those that READs gave up.
    fn forget(&mut self, shared: &Shared) {
        self.reap();
        self.failed.retain(|number, id| shared.table.get(*number).segment_id() == *id);
        let mut given_up = Vec::new();
        self.locked.retain(|one| {
            let Some(mapping) = one.mapping(shared).filter(|mapping| mapping.locked() & one.bit() != 0)
            else {
                return false;
            };
            if mapping.is_given_up() {
                given_up.push(*one);
            }
            !mapping.is_given_up()
        });
        for one in given_up {
            self.unlock(shared, one);
            self.failed.insert(one.number, one.segment_id);
        }
    }

    /// Unlocks what no READ looks at any more.
    fn reap(&mut self) {
        // Whoever has the mapping is counted since the mapping cannot be found any more.
        while let Some(Leaving { mapping, stretches }) = self.leaving.front_mut()
            && let Some(mapping) = Arc::get_mut(mapping)
        {
            each(*stretches).for_each(|stretch| mapping.unlock(stretch));
            self.leaving.pop_front();
        }
    }

    /// Number of frames to be read of a stretch that is locked for it.
    fn price(&self, shared: &Shared) -> u32 {
        let frames = shared.heat.stretches().frames();
        if self.has_room(shared) { frames } else { frames.saturating_mul(READS_FOR_A_PLACE) }
    }

    /// Whether one more stretch can be locked.
    fn has_room(&self, shared: &Shared) -> bool {
        let leaving =
            self.leaving.iter().map(|leaving| leaving.stretches.count_ones() as usize).sum::<usize>();
        let stretches = self.locked.len().saturating_add(leaving).saturating_add(1);
        let frames = (stretches as u64).saturating_mul(shared.heat.stretches().frames().into());
        frames <= shared.mapped_frames_max
    }

    /// Locks a stretch if it was read often enough and can be locked. Returns whether it was locked.
    fn lock_if_worth(&mut self, shared: &Shared, one: Stretch) -> bool {
        let is_worth = shared.heat.frames(one.number, one.stretch) >= self.price(shared);
        if !is_worth {
            return false;
        }
        // Whatever becomes of it: the same READs do not ask again.
        shared.heat.forget(one.number, one.bit());
        let Some(info) = self.lockable(shared, one) else { return false };
        if !self.has_room(shared) && !self.make_room(shared) {
            return false;
        }
        match lock(shared, one, info) {
            Ok(true) => self.locked.push_back(one),
            Ok(false) => return false,
            Err(error) => {
                // Behind what is appended the disk may be written before it is read.
                if info.appended() >= (one.stretch + 1).saturating_mul(shared.heat.stretches().frames())
                    || info.state() != State::Open
                {
                    self.failed.insert(one.number, one.segment_id);
                }
                self.report(shared, one.number, &error);
                return false;
            }
        }
        true
    }

    /// The segment of a stretch that is not locked and can be locked.
    fn lockable<'a>(&self, shared: &'a Shared, one: Stretch) -> Option<&'a SegmentInfo> {
        let info = one.info(shared).filter(|info| one.segment_id != 0 && !info.loses_pages())?;
        if self.failed.contains_key(&one.number) {
            return None;
        }
        let Some(mapping) = one.mapping(shared) else { return Some(info) };
        // Unlocking the stretch would take back that it is locked again.
        let is_leaving =
            |leaving: &Leaving| leaving.stretches & one.bit() != 0 && mapping.is_of(&leaving.mapping);
        (mapping.locked() & one.bit() == 0 && !self.leaving.iter().any(is_leaving)).then_some(info)
    }

    /// Unlocks a stretch in which READs found nothing since it was last asked; `false` where there is none, or a READ still looks at it.
    fn make_room(&mut self, shared: &Shared) -> bool {
        while self.asks > 0
            && let Some(first) = self.locked.pop_front()
        {
            self.asks -= 1;
            if first.mapping(shared).is_some_and(|mapping| mapping.take_used(first.stretch)) {
                self.locked.push_back(first);
                continue;
            }
            self.unlock(shared, first);
            return self.has_room(shared);
        }
        false
    }

    /// Has READs find the stretch no more, and unlocks it when none looks at it.
    fn unlock(&mut self, shared: &Shared, one: Stretch) {
        let (Some(info), Some(mapping)) = (one.info(shared), one.mapping(shared)) else { return };
        let rest = mapping.without(one.bit());
        let rest = (rest.locked() != 0).then(|| Arc::new(rest));
        // Whoever took the mapping away meanwhile wants the pages to leave memory.
        if info.replace_mapping(&mapping, rest) {
            self.leaving.push_back(Leaving { mapping, stretches: one.bit() });
            self.reap();
        }
    }

    fn report(&self, shared: &Shared, number: u32, error: &io::Error) {
        if let Some(suppressed) = self.failures.pass() {
            tracing::warn!(
                file = shared.disk.segment_name(number),
                error = error as &dyn std::error::Error,
                suppressed,
                "a segment cannot be locked in memory, so READs of its data are slower: either the disk did not read the data, or memory \
                 that may be locked is short; then raise its limit (ulimit -l, LimitMEMLOCK), or lower cache.mapped_max"
            );
        }
    }
}

/// Locks a stretch, and maps the segment before if it is not. `false` where the segment cannot be mapped.
fn lock(shared: &Shared, one: Stretch, info: &SegmentInfo) -> io::Result<bool> {
    if let Some(mapping) = one.mapping(shared) {
        mapping.lock(one.stretch)?;
        return Ok(true);
    }
    let mapping = info.file().map(|file| file.map(shared.table.segment_bytes())).transpose()?.flatten();
    let Some(mapping) = mapping else { return Ok(false) };
    mapping.lock(one.stretch)?;
    info.set_mapping(Some(Arc::new(mapping)));
    Ok(true)
}
