//! Random interleavings of operations, lost interest and completion, against a plain model of the file.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;

use super::reactor::Pending;
use super::*;

const BLOCKS: usize = 8;

/// How memory is handed to the ring.
#[derive(Clone, Copy, Debug)]
enum Way {
    Heap,
    Slot,
    Fixed,
}

/// The fate of the future.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Awaited,
    Dropped,
}

#[derive(Clone, Debug)]
enum Step {
    Write { first: usize, fills: Vec<u8>, way: Way, fate: Fate },
    Read { first: usize, blocks: usize, way: Way, fate: Fate },
    Sync,
    Turn,
    Await,
}

fn step() -> impl Strategy<Value = Step> {
    let way = || prop_oneof![Just(Way::Heap), Just(Way::Slot), Just(Way::Fixed)];
    let fate = || prop_oneof![4 => Just(Fate::Awaited), 2 => Just(Fate::Dropped)];
    prop_oneof![
        4 => (0..BLOCKS - 3, prop::collection::vec(1_u8.., 1..=4), way(), fate())
            .prop_map(|(first, fills, way, fate)| Step::Write { first, fills, way, fate }),
        4 => (0..BLOCKS - 3, prop_oneof![Just(1_usize), Just(4)], way(), fate())
            .prop_map(|(first, blocks, way, fate)| Step::Read { first, blocks, way, fate }),
        1 => Just(Step::Sync),
        2 => Just(Step::Turn),
        2 => Just(Step::Await),
    ]
}

/// The contents which a read may find in each of its blocks.
type Allowed = Vec<Vec<u8>>;

/// A future which was kept.
struct Awaited {
    pending: Pending,
    bytes: usize,
    allowed: Option<Allowed>,
}

struct Bench {
    reactor: Reactor,
    pool: Pool,
    stats: Arc<WorkerStats>,
    file: Arc<File>,
    /// The possible contents of each block: more than one after a write whose end nobody knows.
    content: Allowed,
    /// Blocks which operations under way write, and read.
    writing: [bool; BLOCKS],
    reading: [bool; BLOCKS],
    awaited: Vec<Awaited>,
}

impl Bench {
    fn new() -> Self {
        let (pool, stats) = pool(16);
        let (reactor, file) = (reactor(&pool), file());
        file.set_len((BLOCKS * BLOCK) as u64).unwrap();
        Self {
            reactor,
            pool,
            stats,
            file,
            content: vec![vec![0]; BLOCKS],
            writing: [false; BLOCKS],
            reading: [false; BLOCKS],
            awaited: Vec::new(),
        }
    }

    /// Waits until nothing is under way.
    fn settle(&mut self) {
        while self.reactor.with_ring(|ring| ring.under_way()) > 0 {
            self.reactor.turn(Some(PATIENCE)).unwrap();
        }
        self.writing = [false; BLOCKS];
        self.reading = [false; BLOCKS];
        while !self.awaited.is_empty() {
            self.check_oldest();
        }
    }

    fn check_oldest(&mut self) {
        if self.awaited.is_empty() {
            return;
        }
        let Awaited { pending, bytes: expected, allowed } = self.awaited.remove(0);
        let (memory, result) = self.reactor.block_on(pending).unwrap();
        assert_eq!(result.unwrap(), expected);
        let Some(allowed) = allowed else { return };
        let bytes = flat(memory);
        for (at, (block, allowed)) in bytes.chunks(BLOCK).zip(allowed).enumerate() {
            assert!(block.iter().all(|&byte| byte == block[0]), "block {at} is torn");
            assert!(allowed.contains(&block[0]), "block {at} holds {}, not one of {allowed:?}", block[0]);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { first, fills, way, fate } => {
                let blocks = first..first + fills.len();
                if blocks.clone().any(|block| self.writing[block] || self.reading[block]) {
                    self.settle();
                }
                let (target, offset) = (Arc::clone(&self.file), (first * BLOCK) as u64);
                let slots = || fills.iter().map(|&fill| slot(&self.pool, BLOCK, fill)).collect::<Vec<_>>();
                let op = match way {
                    Way::Heap | Way::Slot => Op::writev(target, offset, slots()),
                    Way::Fixed => Op::writev_fixed(target, offset, slots()),
                };
                let pending = self.reactor.start(op);
                for (block, &fill) in blocks.zip(&fills) {
                    self.writing[block] = true;
                    self.content[block] = vec![fill];
                }
                self.meet(pending, fills.len(), None, fate);
            }
            Step::Read { first, blocks, way, fate } => {
                let range = first..first + blocks;
                if range.clone().any(|block| self.writing[block]) {
                    self.settle();
                }
                let (target, offset) = (Arc::clone(&self.file), (first * BLOCK) as u64);
                let op = match way {
                    Way::Heap => Op::read(target, offset, vec![0; blocks * BLOCK]),
                    Way::Slot | Way::Fixed => {
                        Op::read(target, offset, vec![slot(&self.pool, blocks * BLOCK, 0)])
                    }
                };
                let pending = self.reactor.start(op);
                range.clone().for_each(|block| self.reading[block] = true);
                let allowed = self.content[range].to_vec();
                self.meet(pending, blocks, Some(allowed), fate);
            }
            Step::Sync => drop(self.reactor.start(Op::sync_data(Arc::clone(&self.file)))),
            Step::Turn => self.reactor.turn(Some(Duration::ZERO)).unwrap(),
            Step::Await => self.check_oldest(),
        }
    }

    fn meet(&mut self, pending: Pending, blocks: usize, allowed: Option<Allowed>, fate: Fate) {
        let bytes = blocks * BLOCK;
        match fate {
            Fate::Awaited => self.awaited.push(Awaited { pending, bytes, allowed }),
            Fate::Dropped => drop(pending),
        }
    }
}

fn flat(memory: Memory) -> Vec<u8> {
    match memory {
        Memory::None => Vec::new(),
        Memory::Heap(bytes) => bytes,
        Memory::Slots(slots) => slots.iter().flat_map(|slot| slot.to_vec()).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_file_is_as_the_model_says_and_no_memory_is_lost(steps in prop::collection::vec(step(), 1..80)) {
        let mut bench = Bench::new();
        for step in steps {
            bench.step(step);
        }
        bench.settle();
        prop_assert_eq!(bench.stats.pool.live_bytes.get(), 0);
        let mut bytes = vec![0; BLOCKS * BLOCK];
        bench.file.read_exact_at(&mut bytes, 0).unwrap();
        for (block, allowed) in bytes.chunks(BLOCK).zip(&bench.content) {
            prop_assert!(block.iter().all(|byte| *byte == block[0]) && allowed.contains(&block[0]));
        }
    }
}
