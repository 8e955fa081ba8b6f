//! WRITEs with FUA of an export which promises that they are in the store.

use super::share::Shared;
use super::*;
use crate::cache::Durability;

const LARGE: u64 = 256;

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_for_the_store_have_no_buffers_which_others_need() {
    let mut shared = Shared::new(Budgets::default()).await;
    let (mut durable, export) = shared.client(0).await;
    export.volume().set_durability(Durability::Store);
    let (mut other, _) = shared.client(1).await;
    let write = |at: u64| {
        let range = SectorRange::new(at * LARGE, LARGE).unwrap();
        Request { operation: Operation::Write, range, fua: true }
    };
    // More than there are slots, and nothing writes back.
    for tag in 0..DEPTH {
        durable.start_request(tag, write(u64::from(tag)), pattern(tag as u8, 128 << 10));
    }
    for round in 0..4 {
        let data = pattern(round as u8 ^ 9, 128 << 10);
        assert_eq!(other.run(Operation::Write, round * LARGE, LARGE, data.clone()).0, Ok(128 << 10));
        assert!(other.run(Operation::Read, round * LARGE, LARGE, Vec::new()).1 == data, "round {round}");
    }
    for tag in 0..DEPTH {
        assert!(durable.result_within(tag, Duration::ZERO).is_none(), "tag {tag}: the store has nothing");
    }
    shared.begin_writeback();
    for tag in 0..DEPTH {
        assert_eq!(durable.finish(tag).0, Ok(128 << 10));
        let read = durable.run(Operation::Read, u64::from(tag) * LARGE, LARGE, Vec::new());
        assert!(read.1 == pattern(tag as u8, 128 << 10), "tag {tag}");
    }
    assert_eq!(shared.bench.worker.stats().pool.live_bytes.get(), 0);
}
