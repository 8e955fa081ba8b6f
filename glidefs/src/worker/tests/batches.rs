//! Exports that compete: how many requests of one the worker answers one after another.

use super::watched::{Flood, Watched, Watcher};
use super::*;

const EXPORTS: u32 = 4;
/// Enough answers for many turns of the worker.
const ANSWERS: usize = 4000;

/// Notes the export of each answer of a flood.
struct Notes {
    export: u32,
    answered: Arc<Mutex<Vec<u32>>>,
    flood: Flood,
}

impl Watcher for Notes {
    fn answer(
        &mut self,
        queue: &mut PipeQueue,
        tag: u16,
        fixed: u32,
        result: Result<u32, &Failure>,
    ) -> squeue::Entry {
        let mut answered = self.answered.lock().unwrap();
        answered.push(self.export);
        let is_over = answered.len() > ANSWERS;
        drop(answered);
        self.flood.answer(queue, (tag, fixed), result, is_over)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_with_many_requests_each_get_several_answers_at_once_and_equal_parts() {
    let bench = Bench::sized(Engine::default(), Known::local(&[]), 160);
    let answered = Arc::new(Mutex::new(Vec::new()));
    let mut floods = Vec::new();
    for export in 1..=EXPORTS {
        let of_client = bench.export(export);
        let client = Client::attach_with(&bench.worker, &of_client, |queue, pipes| {
            let notes = Notes { export, answered: Arc::clone(&answered), flood: Flood::new(pipes) };
            Box::new(Watched { queue, watcher: notes })
        });
        floods.push(client.await.unwrap());
    }
    for flood in &mut floods {
        (0..DEPTH).for_each(|tag| flood.start(tag, Operation::Read, u64::from(tag) * 8, 8, vec![0; 4096]));
    }
    // Only answers that are not sent again may be waited for.
    while answered.lock().unwrap().len() <= ANSWERS {
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
    let answered = std::mem::take(&mut *answered.lock().unwrap());
    // Without the begin, when some exports have not begun yet, and the end.
    let steady = &answered[ANSWERS / 4..ANSWERS];
    let runs = steady.chunk_by(|a, b| a == b).count();
    assert!(runs * 2 < steady.len(), "{runs} runs of {} answers", steady.len());
    for export in 1..=EXPORTS {
        let part = steady.iter().filter(|answer| **answer == export).count();
        assert!(part.abs_diff(steady.len() / EXPORTS as usize) <= 2 * usize::from(DEPTH), "{export}: {part}");
    }
}
