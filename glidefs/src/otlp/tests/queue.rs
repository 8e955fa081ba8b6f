//! The bounds of the queue.

use std::time::Duration;

use proptest::prelude::*;

use super::source::{request, store};
use crate::otlp::queue::{BATCH_SPANS_MAX, BYTES_MAX, Queue, SPANS_MAX, Trace, Waiting};

fn of_request(parts: usize) -> Waiting {
    Waiting { began_unix_nanos: 0, trace: Trace::Request(Box::new(request("read", "ok", parts))) }
}

fn of_store(key_bytes: usize) -> Waiting {
    let trace = Box::new(store(&"k".repeat(key_bytes), "ok"));
    Waiting { began_unix_nanos: 0, trace: Trace::Store { trace, export: None } }
}

#[test]
fn traces_beyond_either_bound_have_no_room() {
    let queue = Queue::default();
    let taken = (0..3 * SPANS_MAX).filter(|_| queue.push(of_request(7))).count();
    assert_eq!(taken, SPANS_MAX / 8);
    assert_eq!(queue.spans(), SPANS_MAX);
    let queue = Queue::default();
    let taken = (0..SPANS_MAX).filter(|_| queue.push(of_store(100_000))).count();
    assert!(taken > 0 && queue.bytes() <= BYTES_MAX && queue.bytes() + 101_000 > BYTES_MAX, "{taken}");
    assert!(!queue.push(of_store(5_000_000)));
}

#[tokio::test]
async fn a_batch_is_whole_or_old_enough_and_a_closed_queue_gives_what_is_left() {
    let queue = Queue::default();
    while queue.spans() < BATCH_SPANS_MAX {
        queue.push(of_request(3));
    }
    queue.push(of_request(3));
    let spans = |batch: Vec<Waiting>| batch.iter().map(Waiting::spans).sum::<usize>();
    // A delay that never ends.
    assert_eq!(spans(queue.batch(Duration::from_hours(1)).await.unwrap()), BATCH_SPANS_MAX);
    assert_eq!(spans(queue.batch(Duration::from_millis(1)).await.unwrap()), 4);
    queue.push(of_store(9));
    queue.close();
    assert_eq!(spans(queue.batch(Duration::from_hours(1)).await.unwrap()), 1);
    assert!(queue.batch(Duration::from_hours(1)).await.is_none());
    assert_eq!((queue.spans(), queue.bytes()), (0, 0));
}

proptest! {
    #[test]
    fn whatever_comes_goes_in_order_in_batches_within_the_bound(
        traces in prop::collection::vec((any::<bool>(), 0..11_usize), 0..300),
    ) {
        let queue = Queue::default();
        let mut spans = Vec::new();
        for (is_request, size) in traces {
            let trace = if is_request { of_request(size) } else { of_store(size) };
            spans.push(trace.spans());
            prop_assert!(queue.push(trace));
        }
        queue.close();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut seen = Vec::new();
        while let Some(batch) = runtime.block_on(queue.batch(Duration::ZERO)) {
            prop_assert!(batch.iter().map(Waiting::spans).sum::<usize>() <= BATCH_SPANS_MAX);
            seen.extend(batch.iter().map(Waiting::spans));
        }
        prop_assert_eq!(seen, spans);
        prop_assert_eq!((queue.spans(), queue.bytes()), (0, 0));
    }
}
