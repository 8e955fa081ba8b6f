//! A device which is moved to other workers: requests that are under way, that wait, and that come.

use std::sync::Arc;
use std::time::Duration;

use super::ending::{linked, remote};
use super::{Bench, Client, pattern};
use crate::export::Operation;
use crate::properties::Durability;
use crate::store::faulty::Fault;
use crate::worker::pause_idle;

/// Number of the device of every client.
const DEVICE: u32 = 7;

impl Client {
    /// Has the kernel take the armed tags back, which a QUIESCE_DEV does. `busy` tags have a request.
    fn take_back_all_but(&mut self, busy: &[u16]) {
        for (tag, pipe) in (0_u16..).zip(&mut self.pipes) {
            if !busy.contains(&tag) {
                *pipe = None;
            }
        }
    }

    async fn is_gone(&mut self) -> bool {
        let Some(gone) = &mut self.gone else { return true };
        tokio::time::timeout(Duration::from_millis(50), gone).await.is_ok()
    }
}

#[tokio::test]
async fn a_paused_queue_that_goes_on_serves_what_came() {
    let bench = Bench::new();
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    client.start(0, Operation::Write, 0, 8, pattern(1, 4096));
    assert_eq!(client.finish(0).0, Ok(4096));
    bench.worker.pause(DEVICE).await.unwrap();
    client.start(1, Operation::Write, 8, 8, pattern(2, 4096));
    client.start(2, Operation::Flush, 0, 0, Vec::new());
    bench.worker.ping().await.unwrap();
    assert!(client.result_within(1, Duration::from_millis(50)).is_none(), "a paused queue answers nothing");
    assert!(client.result_within(2, Duration::ZERO).is_none());
    bench.worker.resume(DEVICE);
    assert_eq!((client.finish(1).0, client.finish(2).0), (Ok(4096), Ok(0)));
    assert_eq!(client.run(Operation::Read, 8, 8, Vec::new()).1, pattern(2, 4096));
    bench.worker.resume(DEVICE);
    bench.worker.leave(DEVICE);
    assert_eq!(
        client.run(Operation::Read, 0, 8, Vec::new()).1,
        pattern(1, 4096),
        "not paused, it does not leave"
    );
    client.detach().await;
    assert_eq!(export.io_totals().in_flight, 0);
}

#[tokio::test]
async fn requests_of_a_queue_that_leaves_stay_unanswered_and_the_queue_goes_with_the_last() {
    let bench = Bench::new();
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    bench.worker.pause(DEVICE).await.unwrap();
    client.start(0, Operation::Write, 0, 8, pattern(1, 4096));
    client.start(1, Operation::Flush, 0, 0, Vec::new());
    bench.worker.ping().await.unwrap();
    client.take_back_all_but(&[0, 1, 2]);
    bench.worker.leave(DEVICE);
    assert!(!client.is_gone().await, "a request is on its way to tag 2");
    client.start(2, Operation::Read, 0, 8, Vec::new());
    client.gone.take().unwrap().await.unwrap();
    for tag in 0..3 {
        assert!(client.result_within(tag, Duration::ZERO).is_none(), "the next worker answers tag {tag}");
    }
    assert_eq!((export.io_totals().in_flight, bench.worker.stats().queues.get()), (0, 0));
    assert_eq!(Arc::strong_count(&export), 1);

    let mut client = Client::attach(&bench.worker, &export).await;
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(3, 4096)).0, Ok(4096));
    assert_eq!(client.run(Operation::Read, 0, 8, Vec::new()).1, pattern(3, 4096), "nothing came late");
    client.detach().await;
}

#[tokio::test]
async fn the_queue_of_another_device_does_not_pause() {
    let bench = Bench::new();
    let mut client = Client::attach(&bench.worker, &bench.export(1)).await;
    bench.worker.pause(DEVICE + 1).await.unwrap();
    bench.worker.leave(DEVICE + 1);
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(1, 4096)).0, Ok(4096));
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_a_request_that_waits_goes_on_and_one_without_pauses() {
    let (faults, remote) = remote().await;
    let (bench, export, _stop) = linked(&remote, Durability::Store);
    let mut client = Client::attach(&bench.worker, &export).await;
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(1, 4096)).0, Ok(4096));
    faults.set(Fault::SlowDown, 1000);
    client.start(0, Operation::Flush, 0, 0, Vec::new());
    while faults.fired(Fault::SlowDown) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let workers = [bench.worker.clone()];
    assert!(!pause_idle(&workers, &export, DEVICE).await, "the flush is in the worker's hands");
    client.start(1, Operation::Write, 8, 8, pattern(2, 4096));
    assert_eq!(client.finish(1).0, Ok(4096), "the queue goes on");
    faults.set(Fault::SlowDown, 0);
    assert_eq!(client.finish(0).0, Ok(0));
    assert!(pause_idle(&workers, &export, DEVICE).await);
    client.start(1, Operation::Read, 8, 8, vec![0; 4096]);
    assert!(client.result_within(1, Duration::from_millis(50)).is_none());
    bench.worker.resume(DEVICE);
    assert_eq!(client.finish(1).1, pattern(2, 4096));
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_in_a_paused_queue_is_served_anew_when_the_queue_goes_on() {
    let (faults, remote) = remote().await;
    let (bench, export, _stop) = linked(&remote, Durability::Store);
    let mut client = Client::attach(&bench.worker, &export).await;
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(1, 4096)).0, Ok(4096));
    faults.set(Fault::SlowDown, 1000);
    client.start(0, Operation::Flush, 0, 0, Vec::new());
    while faults.fired(Fault::SlowDown) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bench.worker.pause(DEVICE).await.unwrap();
    export.volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    while export.requests().in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    export.volume().allow_waits();
    bench.worker.resume(DEVICE);
    faults.set(Fault::SlowDown, 0);
    assert_eq!(client.finish(0).0, Ok(0));
    assert_eq!(export.io_totals().flush_errors, 0);
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_ends_in_a_paused_queue_is_answered_when_the_queue_goes_on() {
    let (faults, remote) = remote().await;
    let (bench, export, _stop) = linked(&remote, Durability::Store);
    let mut client = Client::attach(&bench.worker, &export).await;
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(1, 4096)).0, Ok(4096));
    faults.set(Fault::SlowDown, 1000);
    client.start(0, Operation::Flush, 0, 0, Vec::new());
    while faults.fired(Fault::SlowDown) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bench.worker.pause(DEVICE).await.unwrap();
    faults.set(Fault::SlowDown, 0);
    while export.io_totals().in_flight > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(client.result_within(0, Duration::ZERO).is_none(), "the kernel gets no command");
    bench.worker.resume(DEVICE);
    assert_eq!(client.finish(0).0, Ok(0));
    client.detach().await;
}
