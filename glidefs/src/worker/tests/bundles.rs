//! Exports that compete: how many requests of one the worker answers one after another.

use super::watched::{Flood, Watched, Watcher};
use super::*;

const EXPORTS: u32 = 4;
/// Answers to each export at least: enough for many turns of the worker.
const ANSWERS: usize = 1000;
/// Requests of all exports that are under way at the same time.
const UNDER_WAY: usize = EXPORTS as usize * DEPTH as usize;

/// Notes the export of each answer of a flood.
struct Notes {
    export: u32,
    answered: Arc<Answered>,
    flood: Flood,
}

/// The exports of all answers, in order.
#[derive(Default)]
struct Answered {
    order: Mutex<Vec<u32>>,
    counts: [AtomicUsize; EXPORTS as usize],
}

impl Answered {
    fn note(&self, export: u32) {
        self.order.lock().unwrap().push(export);
        self.counts[export as usize - 1].fetch_add(1, Ordering::AcqRel);
    }

    /// Whether every export has had its answers, however late its client began.
    fn is_over(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Acquire) > ANSWERS)
    }
}

impl Watcher for Notes {
    fn answer(
        &mut self,
        queue: &mut PipeQueue,
        tag: u16,
        fixed: u32,
        result: Result<u32, &Failure>,
    ) -> squeue::Entry {
        self.answered.note(self.export);
        self.flood.answer(queue, (tag, fixed), result, self.answered.is_over())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_with_many_requests_each_get_several_answers_at_once_and_equal_parts() {
    let bench = Bench::sized(Engine::default(), Known::local(&[]), 160);
    let answered = Arc::new(Answered::default());
    let mut floods = Vec::new();
    for export in 1..=EXPORTS {
        let of_client = bench.export(export);
        let client = Client::attach_with(&bench.worker, &of_client, |queue, pipes| {
            let notes = Notes { export, answered: Arc::clone(&answered), flood: Flood::new(pipes) };
            Box::new(Watched { queue, watcher: notes })
        });
        floods.push(client.await.unwrap());
    }
    // The worker waits at its first answer until all requests are there: so all exports have as many from the beginning.
    let none_answered = answered.order.lock().unwrap();
    for flood in &mut floods {
        (0..DEPTH).for_each(|tag| flood.start(tag, Operation::Read, u64::from(tag) * 8, 8, vec![0; 4096]));
    }
    drop(none_answered);
    // Only answers that are not sent again may be waited for.
    while !answered.is_over() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for flood in &floods {
        for tag in 0..DEPTH {
            flood.finish(tag).0.unwrap();
        }
    }
    for flood in floods {
        flood.detach().await;
    }
    let order = std::mem::take(&mut *answered.order.lock().unwrap());
    // From the moment when all exports have begun to the moment when no request is sent again.
    let begun = (1..=EXPORTS).filter_map(|export| order.iter().position(|answer| *answer == export)).max();
    let steady = &order[begun.unwrap() + UNDER_WAY..order.len() - UNDER_WAY];
    let runs = steady.chunk_by(|a, b| a == b).count();
    assert!(runs * 2 < steady.len(), "{runs} runs of {} answers", steady.len());
    for export in 1..=EXPORTS {
        let part = steady.iter().filter(|answer| **answer == export).count();
        assert!(part.abs_diff(steady.len() / EXPORTS as usize) <= 2 * usize::from(DEPTH), "{export}: {part}");
    }
}
