//! READs of mapped segments, from the queue to the answer.

use std::time::{Duration, Instant};

use super::*;

#[tokio::test]
async fn a_read_of_what_is_mapped_takes_no_slot_and_counts_as_any_other() {
    let bench = Bench::mapped();
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    let data = pattern(3, 64 * 512);
    assert_eq!(client.run(Operation::Write, 0, 64, data.clone()).0, Ok(64 * 512));
    assert_eq!(client.run(Operation::Write, 8, 1, vec![9; 512]).0, Ok(512));
    let mut wanted = data;
    wanted[8 * 512..9 * 512].fill(9);
    let (cache, worker) = (&bench.worker.shard_stats, &bench.worker.stats);
    let patience = Instant::now() + Duration::from_secs(30);
    while cache.reads_mapped.get() == 0 {
        assert!(Instant::now() < patience, "nothing was mapped");
        assert!(client.run(Operation::Read, 0, 64, Vec::new()) == (Ok(64 * 512), wanted.clone()));
    }
    let (mapped, slots, reads) = (cache.reads_mapped.get(), worker.pool.acquires.get(), cache.reads.get());
    for (start, count) in [(0, 64), (8, 1), (7, 3), (1, 60), (63, 1)] {
        let (from, to) = (start as usize * 512, (start + count) as usize * 512);
        let read = client.run(Operation::Read, start, count, Vec::new());
        assert!(read == (Ok(count as u32 * 512), wanted[from..to].to_vec()), "{count} sectors at {start}");
    }
    assert_eq!(cache.reads_mapped.get() - mapped, 5);
    assert_eq!(cache.reads.get() - reads, 5);
    assert_eq!(worker.pool.acquires.get(), slots);
    // Zeroes are not in memory.
    assert_eq!(client.run(Operation::Discard, 8, 1, Vec::new()).0, Ok(0));
    assert_eq!(client.run(Operation::Read, 8, 1, Vec::new()).1, vec![0; 512]);
    assert_eq!(cache.reads_mapped.get() - mapped, 5);
    client.detach().await;
}
