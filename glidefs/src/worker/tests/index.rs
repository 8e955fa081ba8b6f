//! An export whose guest tears the index into as many extents as possible.

use super::*;

const MAX: u64 = 16 << 10;
/// What requests under way at the decision may add.
const SLACK: u64 = 4 << 10;

fn bench(on_full: OnFull) -> Bench {
    let budgets = Budgets { index_bytes_max_per_export: MAX, ..Budgets::default() };
    Bench::bounded(Engine::default(), Known::local(&[]), SLOTS, (on_full, budgets))
}

/// Writes every second sector until the index is full, and one sector more, with tag 0. Returns this sector.
fn tear(client: &mut Client, export: &Export) -> u64 {
    for sector in (0..32_000).step_by(2) {
        let is_full = export.volume().usage(Resource::Index).is_full;
        client.start(0, Operation::Write, sector, 1, pattern(1, 512));
        if is_full {
            return sector;
        }
        assert_eq!(client.finish(0).0, Ok(512));
    }
    panic!("the index takes everything");
}

fn discard(client: &mut Client, tag: u16) -> Result<u32, String> {
    client.start(tag, Operation::Discard, 0, 900, Vec::new());
    client.finish(tag).0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_tears_its_extents_waits_at_its_budget_alone_and_can_make_room() {
    let bench = bench(OnFull::Wait);
    let (torn, other) = (bench.export(1), bench.export(2));
    let mut client = Client::attach(&bench.worker, &torn).await;
    let mut neighbour = Client::attach(&bench.worker, &other).await;
    tear(&mut client, &torn);
    for round in 0..50 {
        let data = pattern(round as u8, 4096);
        assert_eq!(neighbour.run(Operation::Write, round * 8, 8, data).0, Ok(4096), "it has few extents");
    }
    assert!(torn.volume().usage(Resource::Index).bytes <= MAX + SLACK);
    assert!(client.result_within(0, Duration::ZERO).is_none(), "the index would grow");
    client.start(1, Operation::Write, 1001, 1, pattern(2, 512));
    client.start(2, Operation::Write, 0, 1, pattern(3, 512));
    assert_eq!(client.finish(2).0, Ok(512), "the same sectors again take no memory");
    assert!(client.result_within(1, Duration::ZERO).is_none(), "this write tears");
    assert_eq!(other.volume().usage(Resource::Index).held, 0);
    client.start(2, Operation::Discard, 0, 900, Vec::new());
    assert_eq!(client.finish(2).0, Ok(0), "a DISCARD makes room");
    assert_eq!((client.finish(0).0, client.finish(1).0), (Ok(512), Ok(512)));
    let figures = torn.volume().usage(Resource::Index);
    assert!(figures.held >= 2 && figures.held_nanos > 0 && !figures.is_full, "{figures:?}");
    assert!(bench.worker.stats.index_waits.get() >= 2);
    assert_eq!(bench.worker.stats.risk_waits.get(), 0);
    client.detach().await;
    neighbour.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_store_writes_that_need_more_index_fail_where_a_full_cache_fails_writes() {
    let bench = bench(OnFull::Enospc);
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    let sector = tear(&mut client, &export);
    assert!(client.finish(0).0.is_err());
    assert!(export.volume().usage(Resource::Index).bytes <= MAX + SLACK);
    assert_eq!(client.run(Operation::Write, 0, 1, pattern(2, 512)).0, Ok(512));
    assert_eq!(client.run(Operation::Discard, 0, 900, Vec::new()).0, Ok(0));
    assert_eq!(client.run(Operation::Write, sector, 1, pattern(1, 512)).0, Ok(512));
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_waits_for_the_index_fails_when_the_device_is_removed() {
    let bench = bench(OnFull::Wait);
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    tear(&mut client, &export);
    client.start(1, Operation::Write, 1001, 1, pattern(2, 512));
    while export.volume().usage(Resource::Index).held == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    export.volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    for tag in 0..2 {
        assert!(client.finish(tag).0.is_err());
    }
    assert_eq!(client.run(Operation::Write, 0, 1, pattern(2, 512)).0, Ok(512), "it takes no memory");
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zeroes_for_sectors_never_written_need_no_room_in_a_full_index() {
    for on_full in [OnFull::Wait, OnFull::Enospc] {
        let bench = bench(on_full);
        let export = bench.export(1);
        let mut client = Client::attach(&bench.worker, &export).await;
        tear(&mut client, &export);
        let before = export.volume().figures().extents;
        for (operation, start) in [(Operation::Discard, 32_001), (Operation::WriteZeroes, 32_301)] {
            for number in 0..100 {
                client.start(1, operation, start + 2 * number, 1, Vec::new());
                assert_eq!(client.finish(1).0, Ok(0), "{on_full:?}");
            }
        }
        assert_eq!(export.volume().figures().extents, before);
        // The first and the last sector have nothing, and the record of the others begins later and ends earlier.
        client.start(1, Operation::Discard, 1, 9, Vec::new());
        assert_eq!(client.finish(1).0, Ok(0), "{on_full:?}");
        // A tag with a request that waits is not given back.
        assert_eq!(discard(&mut client, 1), Ok(0));
        assert_eq!(client.finish(0).0.is_ok(), on_full == OnFull::Wait);
        client.detach().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_for_a_discard_leave_tags_for_the_discard() {
    let bench = bench(OnFull::Wait);
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    tear(&mut client, &export);
    for tag in 1..DEPTH {
        client.start(tag, Operation::Write, 31_001 + 2 * u64::from(tag), 1, pattern(1, 512));
    }
    let mut failed = Vec::new();
    while failed.len() < 2 {
        for tag in 0..DEPTH {
            if let Some((result, _)) = client.result_within(tag, Duration::from_millis(1)) {
                assert!(result.is_err());
                failed.push(tag);
            }
        }
    }
    client.start(failed[0], Operation::Discard, 0, 900, Vec::new());
    assert_eq!(client.finish(failed[0]).0, Ok(0));
    for tag in (0..DEPTH).filter(|tag| !failed.contains(tag)) {
        assert_eq!(client.finish(tag).0, Ok(512), "no more than two failed");
    }
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_the_same_sectors_at_once_are_all_served_behind_a_write_that_waits_for_memory() {
    let bench = bench(OnFull::Wait);
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    tear(&mut client, &export);
    let before = export.volume().figures().extents;
    for round in 0..100 {
        for tag in 1..4 {
            client.start(tag, Operation::Write, 2 * round, 1, pattern(tag as u8, 512));
        }
        for tag in 1..4 {
            assert_eq!(client.finish(tag).0, Ok(512));
        }
    }
    assert_eq!(export.volume().figures().extents, before);
    assert!(client.result_within(0, Duration::ZERO).is_none());
    assert_eq!(discard(&mut client, 1), Ok(0));
    assert_eq!(client.finish(0).0, Ok(512));
    client.detach().await;
}
