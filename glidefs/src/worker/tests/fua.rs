//! WRITEs with FUA of an export which promises that they are in the store.

use super::share::Shared;
use super::*;
use crate::cache::ShardStats;
use crate::properties::Durability;

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
    assert_eq!(shared.bench.worker.stats.pool.live_bytes.get(), 0);
}

/// One FUA WRITE after the other until `shard` has made one stable with its append; a segment for these comes with time.
fn write_through(client: &mut Client, shard: &ShardStats) {
    let before = shard.stable_appends.get();
    for at in 0..10_000 {
        let range = SectorRange::new(at % 100 * 8, 8).unwrap();
        client.start_request(0, Request { operation: Operation::Write, range, fua: true }, pattern(1, 4096));
        assert_eq!(client.finish(0).0, Ok(4096));
        if shard.stable_appends.get() > before {
            return;
        }
    }
    panic!("each FUA WRITE was a sync");
}

#[tokio::test]
async fn a_write_with_fua_and_one_of_an_export_that_flushes_each_are_stable_when_appended_with_every_engine()
{
    for engine in usable_engines() {
        let bench = Bench::sized(engine, Known::local(&[]), 8);
        let (mut client, shard) =
            (Client::attach(&bench.worker, &bench.export(1)).await, &bench.worker.shard_stats);
        write_through(&mut client, shard);
        let before = (shard.syncs.get(), shard.stable_appends.get());
        let mut pairs = 0;
        for (seed, (start, count)) in
            (1..).zip([(0, 8), (3, 1), (5, 17), (100, 256), (101, 254), (1, 2)].repeat(3))
        {
            let data = pattern(seed, count as usize * 512);
            assert_eq!(client.run(Operation::Write, start, count, data.clone()).0, Ok(count as u32 * 512));
            assert_eq!(client.run(Operation::Flush, 0, 0, Vec::new()).0, Ok(0));
            assert!(client.run(Operation::Read, start, count, Vec::new()).1 == data, "{count} at {start}");
            pairs += 1;
        }
        let after = (shard.syncs.get(), shard.stable_appends.get());
        // Either is possible where a segment ended, and the next one was not ready.
        assert!(after.1 - before.1 >= pairs / 2, "{engine:?}: {before:?} {after:?} of {pairs}");
        assert!(after.0 - before.0 < pairs, "{engine:?}: {before:?} {after:?} of {pairs}");
        client.detach().await;
    }
}
