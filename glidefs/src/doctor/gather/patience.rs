//! Questions to parts of the host that may never answer: a dead disk, a file system of a server that is gone, a lost command.
//!
//! Invariant: a question that is not answered costs its time limit and a thread, which ends with the process.

use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// How long a part of the host is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The answer to `question` within [`PATIENCE`]; otherwise the sentence that there was none.
pub(super) async fn answer<T: Send + 'static>(
    question: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, answered) = oneshot::channel();
    let asking = thread::Builder::new().name("question".into()).spawn(move || {
        // Nobody waits any more for an answer that is late.
        let _ = sender.send(question());
    });
    asking.map_err(|error| format!("no thread can be made: {error}"))?;
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_ends_with_its_time_limit() {
        let (_stays, never) = std::sync::mpsc::channel::<()>();
        let silent = answer(move || never.recv()).await;
        assert_eq!(silent, Err("no answer within 10 s".into()));
    }

    #[tokio::test]
    async fn an_answer_in_time_is_given_on() {
        assert_eq!(answer(|| 7).await, Ok(7));
    }
}
