//! Turns of GETs: how many GETs of readers are under way at once, and which volume sends the next one.
//!
//! Owns turns and the queues for a turn. Does not own GETs. Invariants: no more turns are taken than exist; waiting volumes
//! take turns by weight, however many GETs each of them has; a volume holds at most [`FREE_RATIO`] times the turns that are left free, so
//! that a volume whose GETs are never answered leaves some turns to the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::ids::VolumeId;
use crate::fair::Fair;
use crate::locks::MutexExt;

/// How many times the free turns a volume may hold.
const FREE_RATIO: usize = 3;

/// A volume whose readers send GETs, and the weight of the volume among others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub volume: VolumeId,
    pub weight: u16,
}

/// The turns of one store.
#[derive(Debug)]
pub(super) struct Turns(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    free: usize,
    /// Taken turns by volume, without volumes that hold none.
    held: HashMap<VolumeId, usize>,
    /// GETs that wait for a turn.
    waiting: Fair<VolumeId, oneshot::Sender<Turn>>,
}

/// The right to have one GET under way. Given back on drop.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    volume: VolumeId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut inner = self.turns.lock();
        inner.free += 1;
        if let Some(held) = inner.held.get_mut(&self.volume) {
            *held -= 1;
            if *held == 0 {
                inner.held.remove(&self.volume);
            }
        }
        let granted = inner.grant();
        drop(inner);
        for (volume, waiting) in granted {
            // A GET that was given up leaves the turn in the error, whose drop gives the turn back.
            drop(waiting.send(Self { turns: Arc::clone(&self.turns), volume }));
        }
    }
}

impl Turns {
    pub fn new(turns: usize) -> Arc<Self> {
        // In a round a volume of the default weight sends one GET.
        let waiting = Fair::new(1);
        Arc::new(Self(Mutex::new(Inner { free: turns, held: HashMap::new(), waiting })))
    }

    /// Waits for a turn for a GET of `reader`.
    pub async fn take(self: &Arc<Self>, reader: Reader) -> Turn {
        let Reader { volume, weight } = reader;
        loop {
            let waiting = {
                let mut inner = self.lock();
                if !inner.waiting.has(&volume) && inner.take(volume) {
                    return Turn { turns: Arc::clone(self), volume };
                }
                let (sender, receiver) = oneshot::channel();
                inner.waiting.push(volume, weight, 1, sender);
                receiver
            };
            // As long as turns exist, every sender is used before its drop.
            if let Ok(turn) = waiting.await {
                return turn;
            }
        }
    }

    /// A turn for another GET of `volume`, if no GET waits for a turn.
    pub fn try_take(self: &Arc<Self>, volume: VolumeId) -> Option<Turn> {
        let mut inner = self.lock();
        let free = inner.waiting.is_empty() && inner.take(volume);
        free.then(|| Turn { turns: Arc::clone(self), volume })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code that can panic runs between two related changes under the lock.
        self.0.lock_whole()
    }
}

impl Inner {
    /// Takes a turn for `volume`, if `volume` may have one more.
    fn take(&mut self, volume: VolumeId) -> bool {
        let may = may_take(self.free, &self.held, volume);
        if may {
            self.free -= 1;
            *self.held.entry(volume).or_default() += 1;
        }
        may
    }

    /// Takes turns for waiting volumes as long as turns are left. Forgets GETs that were given up; such a GET counts as served.
    fn grant(&mut self) -> Vec<(VolumeId, oneshot::Sender<Turn>)> {
        let mut granted = Vec::new();
        // Without a free turn nobody may take one: the waiting volumes need not be asked.
        while self.free > 0 {
            let Self { free, held, waiting } = self;
            let next = waiting.pop_where(|volume| may_take(*free, held, *volume));
            let Some((volume, sender)) = next else { break };
            if !sender.is_closed() && self.take(volume) {
                granted.push((volume, sender));
            }
        }
        granted
    }
}

/// Whether `volume` may have one more turn.
fn may_take(free: usize, held: &HashMap<VolumeId, usize>, volume: VolumeId) -> bool {
    held.get(&volume).copied().unwrap_or_default() < free.saturating_mul(FREE_RATIO)
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
        ask_by_weight(turns, number, WEIGHT_DEFAULT)
    }

    fn ask_by_weight(
        turns: &Arc<Turns>,
        number: u8,
        weight: u16,
    ) -> (BoxFuture<'static, Turn>, Option<Turn>) {
        let turns = Arc::clone(turns);
        let reader = Reader { volume: volume(number), weight };
        let mut asking = async move { turns.take(reader).await }.boxed();
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
        let first = turns.try_take(volume(9)).unwrap();
        let mut asking: Vec<_> =
            [1, 1, 1, 2, 2, 3].into_iter().map(|number| (number, ask(&turns, number).0)).collect();
        drop(first);
        assert_eq!(order_of(&mut asking), [1, 2, 3, 1, 2, 1]);
    }

    #[test]
    fn a_volume_of_twice_the_weight_sends_twice_as_many_gets() {
        let turns = Turns::new(1);
        let first = turns.try_take(volume(9)).unwrap();
        let weights = [(1, 100), (2, 200), (3, 50)];
        let mut asking: Vec<_> = (0..6)
            .flat_map(|_| weights)
            .map(|(number, weight)| (number, ask_by_weight(&turns, number, weight).0))
            .collect();
        drop(first);
        let order = order_of(&mut asking);
        assert_eq!(order[..7], [1, 2, 2, 1, 2, 2, 3]);
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
        let first = turns.try_take(volume(1)).unwrap();
        let (early, mut late) = (ask(&turns, 2).0, ask(&turns, 3).0);
        let gone = ask(&turns, 3).0;
        drop((first, gone));
        assert!((&mut late).now_or_never().is_none());
        // The turn was granted, and nobody looked.
        drop(early);
        assert!(late.now_or_never().is_some());
        assert!(turns.try_take(volume(3)).is_some());
    }

    proptest! {
        #[test]
        fn turns_are_neither_lost_nor_made(steps in prop::collection::vec((0..5u8, 0..4u8, any::<prop::sample::Index>()), 1..200)) {
            const TURNS: usize = 7;
            let turns = Turns::new(TURNS);
            let (mut asking, mut held): (Vec<BoxFuture<'static, Turn>>, Vec<Turn>) = (Vec::new(), Vec::new());
            for (number, what, index) in steps {
                match what {
                    0 | 1 => {
                        let (waits, turn) = ask(&turns, number);
                        match turn {
                            Some(turn) => held.push(turn),
                            None => asking.push(waits),
                        }
                    }
                    2 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    3 if !asking.is_empty() => drop(asking.swap_remove(index.index(asking.len()))),
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
                prop_assert!(held.len() <= TURNS);
                prop_assert!(asking.is_empty() || !held.is_empty(), "nobody would wake who waits");
            }
            drop(asking);
            held.clear();
            prop_assert_eq!(turns.lock().free, TURNS);
            prop_assert!(turns.lock().waiting.is_empty() && turns.lock().held.is_empty());
        }
    }
}
