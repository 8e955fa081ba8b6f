//! Turns of volumes: how much of a resource is taken at once, and which volume gets the next turn.
//!
//! A *turn* here is the right of a volume to a part of the resource, until the turn is dropped; the size of the part is the *cost* of the
//! turn. Owns turns and the queues for a turn. Does not own the resource: GETs under way, memory (`volume/view/read_memory`), or packs on
//! their way up (`transfer`). Invariants: no turn is given while nothing is free, so as long as the resource is not made smaller all turns
//! together exceed it by less than the cost of the last one;
//! turns go to waiting volumes by weighted fair queueing, however many each wants; a volume with a turn gets another one only if the
//! volume then has at most [`FREE_RATIO`] times the part left free, so that a volume whose GETs are never answered leaves something to
//! the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::ids::VolumeId;
use crate::fair::{Fair, Place};
use crate::locks::MutexExt;

/// A volume with several turns may have so many times the part left free.
const FREE_RATIO: u64 = 3;

/// A volume that reads, or uploads packs, and the weight of the volume among others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub volume: VolumeId,
    pub weight: u16,
}

/// The turns at one resource. No code that can panic runs between two related changes under the lock.
#[derive(Debug)]
pub(super) struct Turns(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    size: u64,
    taken: u64,
    /// The sum of the costs of each volume's turns, without volumes that have no turn.
    held: HashMap<VolumeId, u64>,
    waiting: Fair<VolumeId, Asker>,
    /// The place in `waiting` of each asker, by number.
    places: HashMap<u64, Place>,
    /// The number of the next asker.
    number: u64,
}

/// One that waits for a turn.
#[derive(Debug)]
struct Asker {
    number: u64,
    cost: u64,
    sender: oneshot::Sender<Turn>,
}

/// The place of an asker. Given up on drop, unless the asker has got a turn: a volume is not charged for turns that nobody wants.
#[derive(Debug)]
struct Wait<'a> {
    turns: &'a Arc<Turns>,
    number: u64,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut inner = self.turns.0.lock_whole();
        let Some(place) = inner.places.remove(&self.number) else { return };
        inner.waiting.remove(&place);
        // The next asker of the volume may want less.
        self.turns.hand_out(inner);
    }
}

/// The right to a part of the resource. Given back on drop.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    volume: VolumeId,
    cost: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl Turn {
    /// Gives all but `cost` back.
    pub fn shrink_to(&mut self, cost: u64) {
        let mut inner = self.turns.0.lock_whole();
        let back = self.cost.saturating_sub(cost);
        self.cost -= back;
        inner.give_back(self.volume, back);
        self.turns.hand_out(inner);
    }
}

impl Turns {
    /// Turns at a resource of `size`, in the unit of the costs.
    pub fn new(size: u64) -> Arc<Self> {
        let (held, waiting, places) = (HashMap::new(), Fair::new(), HashMap::new());
        Arc::new(Self(Mutex::new(Inner { size, taken: 0, held, waiting, places, number: 0 })))
    }

    /// Waits for a turn of cost `cost` for `reader`, behind the volume's other askers. To give up, drop the future.
    pub async fn take(self: &Arc<Self>, reader: Reader, cost: u64) -> Turn {
        let Reader { volume, weight } = reader;
        loop {
            let (receiver, _wait) = {
                let mut inner = self.0.lock_whole();
                if !inner.waiting.has(&volume) && inner.take(volume, cost) {
                    return Turn { turns: Arc::clone(self), volume, cost };
                }
                let (sender, receiver) = oneshot::channel();
                let number = inner.number;
                inner.number += 1;
                let place = inner.waiting.push(volume, weight, cost, Asker { number, cost, sender });
                inner.places.insert(number, place);
                (receiver, Wait { turns: self, number })
            };
            // As long as turns exist, every sender is used before its drop.
            if let Ok(turn) = receiver.await {
                return turn;
            }
        }
    }

    /// A turn of cost `cost` for `volume`, if nobody waits for a turn.
    pub fn try_take(self: &Arc<Self>, volume: VolumeId, cost: u64) -> Option<Turn> {
        let mut inner = self.0.lock_whole();
        let free = inner.waiting.is_empty() && inner.take(volume, cost);
        free.then(|| Turn { turns: Arc::clone(self), volume, cost })
    }

    /// Makes the resource larger or smaller. Turns that were given stay.
    pub fn resize(self: &Arc<Self>, change: impl FnOnce(u64) -> u64) {
        let mut inner = self.0.lock_whole();
        inner.size = change(inner.size);
        self.hand_out(inner);
    }

    /// The sum of the costs of all turns.
    pub fn taken(&self) -> u64 {
        self.0.lock_whole().taken
    }

    /// Gives turns to waiting volumes as long as something is free.
    fn hand_out(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        let granted = inner.grant();
        drop(inner);
        for (volume, Asker { cost, sender, .. }) in granted {
            // If the asker has just given up, the turn is in the error, and the drop of the error gives the turn back.
            drop(sender.send(Turn { turns: Arc::clone(self), volume, cost }));
        }
    }
}

impl Inner {
    fn free(&self) -> u64 {
        self.size.saturating_sub(self.taken)
    }

    /// Takes a turn for `volume`, if `volume` may have one more.
    fn take(&mut self, volume: VolumeId, cost: u64) -> bool {
        let may = may_take(self.free(), &self.held, volume, cost);
        if may {
            self.taken = self.taken.saturating_add(cost);
            let held = self.held.entry(volume).or_default();
            *held = held.saturating_add(cost);
        }
        may
    }

    fn give_back(&mut self, volume: VolumeId, cost: u64) {
        self.taken = self.taken.saturating_sub(cost);
        if let Some(held) = self.held.get_mut(&volume) {
            *held = held.saturating_sub(cost);
            if *held == 0 {
                self.held.remove(&volume);
            }
        }
    }

    /// Takes turns for waiting volumes as long as something is free.
    fn grant(&mut self) -> Vec<(VolumeId, Asker)> {
        let mut granted = Vec::new();
        // While nothing is free no volume may take a turn: the waiting volumes need not be asked.
        while self.free() > 0 {
            let free = self.free();
            let Self { held, waiting, .. } = self;
            let next = waiting.pop_where(|volume, asker| may_take(free, held, *volume, asker.cost));
            let Some((volume, asker)) = next else { break };
            self.places.remove(&asker.number);
            if self.take(volume, asker.cost) {
                granted.push((volume, asker));
            }
        }
        granted
    }
}

/// Whether `volume` may have one more turn, of cost `cost`. A volume without a turn gets one while anything is free.
fn may_take(free: u64, held: &HashMap<VolumeId, u64>, volume: VolumeId, cost: u64) -> bool {
    let left = free.saturating_sub(cost);
    free > 0
        && held.get(&volume).is_none_or(|held| held.saturating_add(cost) <= left.saturating_mul(FREE_RATIO))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use proptest::prelude::*;

    use super::*;
    use crate::fair::WEIGHT_DEFAULT;

    fn volume(number: u8) -> VolumeId {
        VolumeId([number; 16])
    }

    /// Asks for a turn: the answer if there is one at once, else the wait.
    fn ask(turns: &Arc<Turns>, number: u8) -> (BoxFuture<'static, Turn>, Option<Turn>) {
        ask_for(turns, number, (WEIGHT_DEFAULT, 1))
    }

    /// Asks for a turn by weight and cost.
    fn ask_for(
        turns: &Arc<Turns>,
        number: u8,
        (weight, cost): (u16, u64),
    ) -> (BoxFuture<'static, Turn>, Option<Turn>) {
        let turns = Arc::clone(turns);
        let reader = Reader { volume: volume(number), weight };
        let mut asking = async move { turns.take(reader, cost).await }.boxed();
        let turn = (&mut asking).now_or_never();
        (asking, turn)
    }

    #[test]
    fn a_volume_with_a_thousand_misses_delays_one_miss_of_another_by_a_turn() {
        let turns = Turns::new(8);
        let asked: Vec<_> = (0..1000).map(|_| ask(&turns, 1)).collect();
        let (mut many, mut held): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        held.retain(Option::is_some);
        assert_eq!(held.len(), 6, "a quarter is left to others");
        // Other volumes take the rest, so that the single miss has to wait.
        let others: Vec<_> = [2, 3].map(|number| ask(&turns, number).1.unwrap()).into();
        let (mut one, turn) = ask(&turns, 9);
        assert!(turn.is_none());
        held.pop();
        let turn = (&mut one).now_or_never();
        assert!(turn.is_some(), "the first turn that is given back");
        drop((turn, others));
        // Turns that no other volume wants go back to the first volume.
        let granted = many.iter_mut().skip(6).filter_map(FutureExt::now_or_never).collect::<Vec<_>>();
        assert_eq!(granted.len() + held.len(), 6);
    }

    #[test]
    fn volumes_that_wait_take_turns() {
        let turns = Turns::new(1);
        let first = turns.try_take(volume(9), 1).unwrap();
        let mut asking: Vec<_> =
            [1, 1, 1, 2, 2, 3].into_iter().map(|number| (number, ask(&turns, number).0)).collect();
        drop(first);
        assert_eq!(order_of(&mut asking), [1, 2, 3, 1, 2, 1]);
    }

    #[test]
    fn a_volume_of_twice_the_weight_sends_twice_as_many_gets() {
        let turns = Turns::new(1);
        let first = turns.try_take(volume(9), 1).unwrap();
        let weights = [(1, 100), (2, 200), (3, 50)];
        let mut asking: Vec<_> = (0..6)
            .flat_map(|_| weights)
            .map(|(number, weight)| (number, ask_for(&turns, number, (weight, 1)).0))
            .collect();
        drop(first);
        let order = order_of(&mut asking);
        assert_eq!(order[..7], [2, 1, 2, 2, 1, 2, 3]);
    }

    /// The volumes in the order in which the GETs get the only turn.
    fn order_of(asking: &mut Vec<(u8, BoxFuture<'static, Turn>)>) -> Vec<u8> {
        let mut order = Vec::new();
        while !asking.is_empty() {
            let came = asking
                .iter_mut()
                .enumerate()
                .find_map(|(at, (_, asking))| Some((at, asking.now_or_never()?)));
            let (at, turn) = came.unwrap();
            order.push(asking.remove(at).0);
            drop(turn);
        }
        order
    }

    #[test]
    fn who_gives_up_passes_its_turn_on() {
        let turns = Turns::new(1);
        let first = turns.try_take(volume(1), 1).unwrap();
        let (early, mut late) = (ask(&turns, 2).0, ask(&turns, 3).0);
        let gone = ask(&turns, 3).0;
        drop((first, gone));
        assert!((&mut late).now_or_never().is_none());
        // The turn was granted, and nobody looked.
        drop(early);
        assert!(late.now_or_never().is_some());
        assert!(turns.try_take(volume(3), 1).is_some());
    }

    #[test]
    fn who_gave_up_costs_its_volume_no_turn() {
        let turns = Turns::new(1);
        let first = turns.try_take(volume(9), 1).unwrap();
        let given_up: Vec<_> = (0..9).map(|_| ask(&turns, 1).0).collect();
        let numbers = std::iter::once(1).chain(std::iter::repeat_n(2, 20));
        let mut asking: Vec<_> = numbers.map(|number| (number, ask(&turns, number).0)).collect();
        drop((given_up, first));
        let order = order_of(&mut asking);
        assert!(order[..2].contains(&1), "{order:?}");
    }

    #[test]
    fn a_dear_turn_that_nobody_wants_any_more_keeps_nobody_waiting() {
        let turns = Turns::new(8);
        let held = turns.try_take(volume(1), 4).unwrap();
        // Half is free, and nobody may have so much of it.
        let dear = ask_for(&turns, 1, (WEIGHT_DEFAULT, 4)).0;
        let cheap = ask_for(&turns, 1, (WEIGHT_DEFAULT, 1)).0;
        drop(dear);
        assert!(cheap.now_or_never().is_some());
        drop(held);
    }

    proptest! {
        #[test]
        fn turns_are_neither_lost_nor_made(steps in prop::collection::vec((0..5u8, 0..5u8, 1..4u64, any::<prop::sample::Index>()), 1..200)) {
            const TURNS: u64 = 7;
            const COST_MAX: u64 = 3;
            let turns = Turns::new(TURNS);
            let (mut asking, mut held): (Vec<BoxFuture<'static, Turn>>, Vec<Turn>) = (Vec::new(), Vec::new());
            for (number, what, cost, index) in steps {
                match what {
                    0 | 1 => {
                        let (waits, turn) = ask_for(&turns, number, (WEIGHT_DEFAULT, cost));
                        match turn {
                            Some(turn) => held.push(turn),
                            None => asking.push(waits),
                        }
                    }
                    2 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    3 if !held.is_empty() => {
                        let at = index.index(held.len());
                        held[at].shrink_to(cost);
                    }
                    4 if !asking.is_empty() => drop(asking.swap_remove(index.index(asking.len()))),
                    _ => {}
                }
                let mut waits = Vec::new();
                for mut asking in asking.drain(..) {
                    match (&mut asking).now_or_never() {
                        Some(turn) => held.push(turn),
                        None => waits.push(asking),
                    }
                }
                asking = waits;
                let taken: u64 = held.iter().map(|turn| turn.cost).sum();
                prop_assert_eq!(turns.taken(), taken);
                prop_assert!(taken < TURNS + COST_MAX);
                prop_assert!(asking.is_empty() || !held.is_empty(), "nobody would wake who waits");
            }
            drop(asking);
            held.clear();
            prop_assert_eq!(turns.taken(), 0);
            let inner = turns.0.lock_whole();
            prop_assert!(inner.waiting.is_empty() && inner.places.is_empty() && inner.held.is_empty());
        }
    }
}
