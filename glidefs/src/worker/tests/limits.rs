//! An export with limits, on a worker with a ring.

use super::*;
use crate::properties::limits::{Limit, Limits, Settings};

/// One byte a second read, and one written: the second request waits for longer than any test.
fn slow() -> Settings {
    let mut limits = Limits::unlimited(Limits::BURST_MIN);
    limits.set_rate(Limit::WriteBytes, Some(1));
    limits.set_rate(Limit::ReadBytes, Some(1));
    Settings { limits, ..Settings::default() }
}

/// Starts more than the limits of [`slow`] allow at once: tags 0 and 1 write, tags 2 and 3 read.
fn overload(client: &mut Client) {
    for tag in 0..4 {
        let operation = if tag < 2 { Operation::Write } else { Operation::Read };
        client.start(tag, operation, u64::from(tag) * 8, 8, pattern(tag as u8, 4096));
    }
}

#[tokio::test]
async fn waiting_requests_go_on_when_the_limits_are_lifted_and_other_exports_do_not_wait() {
    let bench = Bench::new();
    let (limited, other) = (bench.export(1), bench.export(2));
    limited.set_settings(&slow());
    let mut client = Client::attach(&bench.worker, &limited).await;
    let mut neighbour = Client::attach(&bench.worker, &other).await;
    overload(&mut client);
    for round in 0..50 {
        assert_eq!(neighbour.run(Operation::Write, round * 8, 8, pattern(1, 4096)).0, Ok(4096));
    }
    client.start(4, Operation::Flush, 0, 0, Vec::new());
    assert_eq!(client.finish(4).0, Ok(0), "FLUSH is free");
    limited.set_settings(&Settings::default());
    for tag in 0..4 {
        assert_eq!(client.finish(tag).0, Ok(4096));
    }
    let waited: u64 = limited.throttle().unwrap().figures().map(|figures| figures.throttled).sum();
    assert_eq!(waited, 2, "one write and one read");
    client.detach().await;
    neighbour.detach().await;
}

#[tokio::test]
async fn requests_over_a_limit_are_served_in_turns_of_bounded_length_when_their_device_is_removed() {
    let bench = Bench::sized(Engine::default(), Known::local(&[]), usize::from(DEPTH));
    let export = bench.export(1);
    export.set_settings(&slow());
    let mut client = Client::attach(&bench.worker, &export).await;
    for tag in 0..DEPTH {
        client.start(tag, Operation::Read, u64::from(tag) * 256, 256, Vec::new());
    }
    assert_eq!(client.finish(0).0, Ok(128 << 10));
    // All others have come, and wait.
    bench.worker.ping().await.unwrap();
    let before = bench.worker.stats.turns.get();
    export.volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    for tag in 1..DEPTH {
        assert_eq!(client.finish(tag).0, Ok(128 << 10));
    }
    let turns = bench.worker.stats.turns.get() - before;
    assert!(turns >= u64::from(DEPTH / 2), "{turns} turns: each takes one of the largest requests");
    client.detach().await;
}

#[tokio::test]
async fn requests_over_a_limit_are_served_when_their_device_is_removed() {
    let bench = Bench::new();
    let export = bench.export(1);
    export.set_settings(&slow());
    let mut client = Client::attach(&bench.worker, &export).await;
    overload(&mut client);
    for tag in [0, 2] {
        assert_eq!(client.finish(tag).0, Ok(4096));
    }
    export.volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    for tag in [1, 3] {
        assert_eq!(client.finish(tag).0, Ok(4096));
    }
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(9, 4096)).0, Ok(4096), "no limit holds any more");
    client.detach().await;
}
