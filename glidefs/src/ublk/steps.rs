//! Control commands as steps: each on a thread of its own, under a time limit, one at a time for a device number.
//!
//! Owns when a step may begin (`making`: when a device may be made). Does not own the action of a step (`control`). Invariants: a step
//! whose caller has given up before the step began is never begun; steps that make devices run one after the other, in the order of
//! their calls; while a step on a device number runs, however long, no other step on that number begins. So a step which timed out
//! cannot meet another device of the same number later: such a device could only be made after the first one was deleted, and the
//! deletion is a step too.

mod making;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use self::making::Making;
use crate::locks::LocksByKey;
use crate::router::devices::{DeviceError, DeviceId};

/// Begins steps, and waits for their ends.
#[derive(Debug)]
pub struct Steps {
    limit: Duration,
    making: Making,
    /// Who may run a step on a device number.
    locks: LocksByKey<DeviceId>,
}

/// A caller who waits for a step. Dropping the value says that nobody waits any more.
struct Caller(Arc<AtomicBool>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Steps {
    /// Steps that are waited for at most `limit`.
    pub fn new(limit: Duration) -> Self {
        Self { limit, making: Making::default(), locks: LocksByKey::default() }
    }

    /// How long a step is waited for.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Runs `step` on device `id`.
    pub async fn on<T: Send + 'static>(
        &self,
        command: &'static str,
        id: DeviceId,
        step: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let lock = self.locks.of(&id);
        self.until(self.deadline(), command, &id.path(), in_turn(lock, step)).await
    }

    /// Runs `step`, which is about no device in particular and changes nothing.
    pub async fn anywhere<T: Send + 'static>(
        &self,
        command: &'static str,
        step: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        self.until(self.deadline(), command, "a new device", off_the_workers(step, drop)).await
    }

    /// Runs `step`, which makes a device, alone: no other step makes one. When the caller has given up meanwhile, `undo` takes the
    /// result of `step` back.
    ///
    /// # Errors
    /// [`DeviceError::Stuck`] at once, while the step of an earlier caller runs for longer than the limit.
    pub async fn making<T: Send + 'static>(
        &self,
        command: &'static str,
        path: String,
        step: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> Result<T, DeviceError> {
        let deadline = self.deadline();
        let turn =
            self.until(deadline, command, &path, async { Ok(self.making.turn(self.limit).await) }).await?;
        turn.begin(command, &path);
        let step = move || {
            let _turn = turn;
            step()
        };
        self.until(deadline, command, &path, off_the_workers(step, undo)).await
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.limit
    }

    async fn until<T>(
        &self,
        deadline: Instant,
        command: &'static str,
        path: &str,
        step: impl Future<Output = io::Result<Result<T, DeviceError>>>,
    ) -> Result<T, DeviceError> {
        match timeout_at(deadline, step).await {
            Ok(Ok(result)) => result,
            Ok(Err(source)) => Err(DeviceError::Kernel { command, path: path.into(), source }),
            Err(_) => {
                Err(DeviceError::TimedOut { command, path: path.into(), seconds: self.limit.as_secs() })
            }
        }
    }
}

/// As [`off_the_workers`], with `lock` held until the step has ended, also when nobody waits for the step any more.
async fn in_turn<T: Send + 'static>(
    lock: Arc<tokio::sync::Mutex<()>>,
    step: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
) -> io::Result<Result<T, DeviceError>> {
    let guard = lock.lock_owned().await;
    let step = move || {
        let _guard = guard;
        step()
    };
    off_the_workers(step, drop).await
}

/// Runs `step` on a thread which may block, unless the caller has given up before.
async fn off_the_workers<T: Send + 'static>(
    step: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> io::Result<Result<T, DeviceError>> {
    let given_up = Arc::new(AtomicBool::new(false));
    let caller = Caller(Arc::clone(&given_up));
    let thread = tokio::task::spawn_blocking(move || {
        if given_up.load(Ordering::Acquire) {
            return None;
        }
        let result = step();
        if given_up.load(Ordering::Acquire) {
            if let Ok(done) = result {
                undo(done);
            }
            return None;
        }
        Some(result)
    });
    let ended = thread.await.map_err(io::Error::other);
    drop(caller);
    ended?.ok_or_else(|| io::ErrorKind::Interrupted.into())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Poll;

    use futures_util::poll;

    use super::*;

    const DEVICE: DeviceId = DeviceId(7);

    /// A runtime in which one step runs at a time.
    fn one_thread() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap()
    }

    /// A step which ends when told, the way to tell, and the announcement that the step has begun.
    fn stuck() -> (
        impl FnOnce() -> Result<(), DeviceError> + Send + 'static,
        mpsc::Sender<()>,
        tokio::sync::oneshot::Receiver<()>,
    ) {
        let ((tell, told), (begin, begun)) = (mpsc::channel(), tokio::sync::oneshot::channel());
        let step = move || {
            let _ = begin.send(());
            let _ = told.recv();
            Ok(())
        };
        (step, tell, begun)
    }

    /// Waits for `step` until `step` has begun, and no longer.
    async fn give_up_when<T>(
        begun: tokio::sync::oneshot::Receiver<()>,
        step: impl Future<Output = Result<T, DeviceError>>,
    ) {
        tokio::select! {
            _ = step => panic!("the step ended by itself"),
            begun = begun => begun.unwrap(),
        }
    }

    /// Makes a device of path `path`.
    async fn make<T: Send + 'static>(
        steps: &Steps,
        path: &str,
        step: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        steps.making("ADD_DEV", path.into(), step, drop).await
    }

    fn say(sender: &mpsc::Sender<&'static str>, word: &'static str) -> Result<(), DeviceError> {
        sender.send(word).map_err(|_| DeviceError::NoDriver)
    }

    #[test]
    fn a_step_that_timed_out_before_it_began_is_never_begun() {
        one_thread().block_on(async {
            let (steps, patient) =
                (Steps::new(Duration::from_millis(20)), Steps::new(Duration::from_mins(1)));
            let (first, tell, begun) = stuck();
            give_up_when(begun, patient.anywhere("ADD_DEV", first)).await;
            let (ran, is_run) = mpsc::channel();
            let second = move || say(&ran, "ran");
            assert!(matches!(steps.on("DEL_DEV", DEVICE, second).await, Err(DeviceError::TimedOut { .. })));
            tell.send(()).unwrap();
            patient.anywhere("listing", || Ok(())).await.unwrap();
            assert!(is_run.recv().is_err(), "the thread came to it, and let it be");
        });
    }

    #[tokio::test]
    async fn no_step_begins_on_a_device_on_which_one_that_timed_out_still_runs() {
        let steps = Steps::new(Duration::from_mins(1));
        let (first, tell, begun) = stuck();
        give_up_when(begun, steps.on("STOP_DEV", DEVICE, first)).await;
        let (ran, is_run) = mpsc::channel();
        let again = ran.clone();
        let early = steps.on("DEL_DEV", DEVICE, move || say(&again, "early"));
        assert!(tokio::time::timeout(Duration::from_millis(20), early).await.is_err());
        steps.on("GET_DEV_INFO", DeviceId(8), || Ok(())).await.unwrap();
        tell.send(()).unwrap();
        steps.on("DEL_DEV", DEVICE, move || say(&ran, "late")).await.unwrap();
        assert_eq!(is_run.try_recv(), Ok("late"));
    }

    #[tokio::test]
    async fn steps_that_make_devices_begin_in_the_order_of_their_calls() {
        let steps = Steps::new(Duration::from_mins(1));
        let (first, tell, begun) = stuck();
        give_up_when(begun, make(&steps, "a new device", first)).await;
        let (began, order) = mpsc::channel();
        let later = (0..20).map(|number| {
            let began = began.clone();
            let step = move || {
                // The step behind would pass this one, if the lock let go.
                std::thread::yield_now();
                began.send(number).map_err(|_| DeviceError::NoDriver)
            };
            make(&steps, "a new device", step)
        });
        let all = futures_util::future::join_all(later);
        let ends = async {
            assert!(order.try_recv().is_err(), "a step began beside another one");
            tell.send(()).unwrap();
        };
        let (ended, ()) = tokio::join!(all, ends);
        assert!(ended.iter().all(Result::is_ok));
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_making_of_a_device_does_not_end_others_fail_at_once_and_name_what_hangs() {
        let limit = Duration::from_secs(10);
        let steps = Steps::new(limit);
        let (first, tell, begun) = stuck();
        let mut first = pin!(make(&steps, "/dev/ublkb3", first));
        give_up_when(begun, &mut first).await;
        tokio::time::advance(limit / 2).await;
        let mut second = pin!(make(&steps, "/dev/ublkb4", || Ok(())));
        assert!(poll!(&mut second).is_pending(), "the first may still end in time");
        tokio::time::advance(limit / 2).await;
        assert!(matches!(first.await, Err(DeviceError::TimedOut { .. })));
        let mut third = pin!(make(&steps, "/dev/ublkb5", || Ok(())));
        for late in [poll!(&mut second), poll!(&mut third)] {
            let Poll::Ready(Err(error)) = late else { panic!("{late:?}") };
            let text = crate::observe::chain(&error);
            assert!(text.contains("ADD_DEV on /dev/ublkb3"), "{text}");
        }
        tell.send(()).unwrap();
        // The thread of the first step may take a moment to end.
        while make(&steps, "/dev/ublkb4", || Ok(())).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_a_step_made_for_nobody_is_taken_back() {
        let steps = Steps::new(Duration::from_mins(1));
        let (first, tell, begun) = stuck();
        let (undone, is_undone) = mpsc::channel();
        let made = steps.making(
            "ADD_DEV",
            "a new device".into(),
            move || first().map(|()| 9),
            move |device: u32| undone.send(device).unwrap(),
        );
        give_up_when(begun, made).await;
        tell.send(()).unwrap();
        let device = tokio::task::spawn_blocking(move || is_undone.recv()).await.unwrap();
        assert_eq!(device, Ok(9));
    }
}
