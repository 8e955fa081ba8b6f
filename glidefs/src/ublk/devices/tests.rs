//! Choices and tries of moves, on a machine that needs no ublk driver: no device of these numbers exists.

use std::sync::atomic::Ordering;

use libublk::sys;

use super::*;
use crate::cache::Volume;

const STEP_LIMIT: Duration = Duration::from_secs(10);
const SETTINGS: Settings = Settings { bounce: true, moves: true, batch: false };

fn key(number: u32) -> DeviceKey {
    (ExportId(number), DeviceId(4_000_000 + number))
}

/// Two workers without threads, the first of which has so many devices of one queue.
fn crowded(count: u32) -> UblkDevices {
    let devices = UblkDevices {
        placement: Placement::new(2),
        ..UblkDevices::new(Vec::new(), Features::of(&[]), SETTINGS, 1, STEP_LIMIT, Untouchable::default())
    };
    (1..=count).for_each(|number| serve_on_first(&devices, number));
    devices
}

fn export(number: u32) -> Arc<Export> {
    let id = ExportId(number);
    Arc::new(Export::new(id, format!("e-{number}"), 1 << 20, Arc::new(Volume::new(id))))
}

fn serve_on_first(devices: &UblkDevices, number: u32) {
    let mut hosted = Hosted::new(export(number), 1, Mode::UserCopy, Stay::Movable);
    hosted.workers.push(0);
    devices.placement.put(0);
    devices.host(key(number), hosted);
}

#[tokio::test]
async fn a_new_device_has_batches_where_asked_for_and_only_if_no_move_is_asked_for() {
    let old = [sys::UBLK_F_USER_COPY, sys::UBLK_F_BATCH_IO];
    let new = [&old[..], &[sys::UBLK_F_SHMEM_ZC, sys::UBLK_F_QUIESCE]].concat();
    let asked = Settings { bounce: false, moves: false, batch: true };
    for (features, settings, expected) in [
        (&new[..], asked, Mode::Batch),
        (&new, Settings { batch: false, ..asked }, Mode::UserCopy),
        (&new, Settings { bounce: true, ..asked }, Mode::Bounce),
        (&new, Settings { moves: true, ..asked }, Mode::UserCopy),
        (&old, asked, Mode::UserCopy),
        (&[], asked, Mode::Bounce),
    ] {
        let devices = UblkDevices::new(
            Vec::new(),
            Features::of(features),
            settings,
            1,
            STEP_LIMIT,
            Untouchable::default(),
        );
        assert_eq!(devices.mode(), expected, "{settings:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_device_with_batches_is_stopped_again_and_the_error_names_the_whole_wait() {
    let devices = crowded(0);
    for (mode, expected) in [(Mode::UserCopy, 0), (Mode::Bounce, 0), (Mode::Batch, 9)] {
        let (_kept, gone) = tokio::sync::oneshot::channel();
        let mut hosted = Hosted::new(export(1), 1, mode, Stay::Fixed);
        hosted.armed(gone);
        devices.host(key(1), hosted);
        let stops = AtomicU64::new(0);
        let stop = || async { Ok(stops.fetch_add(1, Ordering::Relaxed) > 0) };
        let result = devices.let_go_of_stopped(key(1), stop).await;
        let seconds = STEP_LIMIT.as_secs();
        assert!(
            matches!(result, Err(DeviceError::TimedOut { seconds: s, .. }) if s == seconds),
            "{result:?}"
        );
        assert_eq!(stops.into_inner(), expected, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_with_batches_is_let_go_of_when_its_queues_are_gone() {
    let devices = crowded(0);
    let (queue, gone) = tokio::sync::oneshot::channel();
    let mut hosted = Hosted::new(export(1), 1, Mode::Batch, Stay::Fixed);
    hosted.armed(gone);
    devices.host(key(1), hosted);
    let queue = Mutex::new(Some(queue));
    // The first STOP_DEV after the one before fails, the second ends the queue.
    let tries = AtomicU64::new(0);
    let stop = || async {
        if tries.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(DeviceError::NotFound { path: key(1).1.path() });
        }
        drop(queue.lock().unwrap().take());
        Ok(true)
    };
    devices.let_go_of_stopped(key(1), stop).await.unwrap();
    assert_eq!(tries.into_inner(), 2);
    assert!(!devices.is_hosted(key(1)));
}

#[tokio::test(start_paused = true)]
async fn a_device_that_can_be_neither_started_nor_removed_is_named_and_stays_in_the_list() {
    let devices = crowded(0);
    let (_kept, gone) = tokio::sync::oneshot::channel();
    let mut hosted = Hosted::new(export(1), 1, Mode::UserCopy, Stay::Fixed);
    hosted.armed(gone);
    devices.host(key(1), hosted);
    let error = devices.undo(key(1), DeviceError::NoDriver).await;
    assert!(matches!(error, DeviceError::Left { device, .. } if device == key(1).1), "{error}");
    assert!(devices.is_hosted(key(1)));
    let error = devices.undo(key(2), DeviceError::NoDriver).await;
    assert!(matches!(error, DeviceError::NoDriver), "a device that is gone is not left: {error}");
}

fn stay(devices: &UblkDevices, number: u32) -> Stay {
    devices.hosted.lock().unwrap()[&key(number)].stay
}

#[tokio::test]
async fn a_device_that_is_hosted_anew_counts_once() {
    let devices = crowded(2);
    serve_on_first(&devices, 2);
    assert_eq!(devices.placement.queues(), [2, 0]);
    devices.let_go(key(2), STEP_LIMIT).await.unwrap();
    assert_eq!(devices.placement.queues(), [1, 0]);
}

#[tokio::test]
async fn a_device_which_the_kernel_refuses_to_take_back_stays_for_good() {
    let devices = crowded(2);
    assert!(!devices.relocate_now(key(1)).await.unwrap());
    assert_eq!((stay(&devices, 1), stay(&devices, 2)), (Stay::Fixed, Stay::Movable));
    assert_eq!(devices.moves(), (0, 1));
    assert_eq!(devices.next_device(&HashSet::new()).unwrap().1, key(2).1);
}

#[tokio::test(start_paused = true)]
async fn a_device_with_requests_in_the_hands_of_workers_stays_and_rests() {
    let devices = crowded(2);
    let export = Arc::clone(&devices.hosted.lock().unwrap()[&key(1)].export);
    export.queue_stats(0).in_flight.add(1);
    assert!(!devices.relocate_now(key(1)).await.unwrap());
    assert_eq!((stay(&devices, 1), devices.moves()), (Stay::Movable, (0, 0)));
    let others = HashSet::from([key(2).0]);
    assert!(devices.next_device(&others).is_none());
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_eq!(devices.next_device(&others).unwrap().1, key(1).1);
}

#[tokio::test]
async fn a_device_with_a_command_under_way_stays_and_is_not_paused() {
    let devices = crowded(2);
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let stuck = devices.steps.on("UPDATE_SIZE", key(1).1, move || {
        let _ = begin.send(());
        let _ = told.recv();
        Ok(())
    });
    tokio::select! {
        _ = stuck => panic!("the step ended by itself"),
        begun = begun => begun.unwrap(),
    }
    assert!(!devices.relocate_now(key(1)).await.unwrap());
    assert_eq!((stay(&devices, 1), devices.moves()), (Stay::Movable, (0, 0)));
    drop(tell);
}
