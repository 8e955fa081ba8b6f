//! Moves of devices between workers, beside other operations on the exports.

use std::sync::Arc;
use std::time::Duration;

use super::fake::{Fault, Host, create, tries_ended};
use crate::router::{DeviceId, Router, State};

const MIB: u64 = 1 << 20;

/// Has the kernel want to move the devices of these exports, one after the other.
fn crowd(host: &Host, router: &Router, names: &[&str]) {
    let wanted = names.iter().map(|name| {
        let device = router.show(name).unwrap().device.unwrap_or(DeviceId(99));
        (router.export_for_io(name).unwrap(), device)
    });
    host.kernel.to_move.lock().unwrap().extend(wanted);
}

#[tokio::test]
async fn devices_are_moved_one_after_the_other_and_no_more_than_allowed() {
    let host = Host::new();
    let router = host.started().await;
    for name in ["a", "b", "c"] {
        router.create(create(name, MIB)).await.unwrap();
    }
    crowd(&host, &router, &["a", "b", "c"]);
    host.kernel.take_log();
    assert_eq!(router.tend_devices(2).await, 2);
    assert_eq!(host.kernel.take_log(), ["relocate 0", "relocate 1"]);
    assert_eq!((router.tend_devices(9).await, router.tend_devices(9).await), (1, 0));
}

#[tokio::test]
async fn an_export_with_an_operation_under_way_or_without_a_device_is_left_out() {
    let host = Host::new();
    let router = host.started().await;
    for name in ["a", "b", "c"] {
        router.create(create(name, MIB)).await.unwrap();
    }
    crowd(&host, &router, &["a", "b", "c"]);
    router.detach("b").await.unwrap();
    host.kernel.fault("detach", Fault::Pause);
    let detaching = tokio::spawn({
        let router = Arc::clone(&router);
        async move { router.detach("a").await }
    });
    host.kernel.paused.take(1).await;
    host.kernel.take_log();
    assert_eq!(router.tend_devices(9).await, 1);
    assert_eq!(host.kernel.take_log(), ["relocate 2"]);
    host.kernel.resumed.0.add_permits(1);
    assert_eq!(detaching.await.unwrap().unwrap().state, State::Detached);
}

#[tokio::test]
async fn an_operation_on_the_export_and_the_stop_of_the_daemon_wait_for_a_move() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    crowd(&host, &router, &["a"]);
    host.kernel.fault("relocate", Fault::Pause);
    let moving = tokio::spawn({
        let router = Arc::clone(&router);
        async move { router.tend_devices(9).await }
    });
    host.kernel.paused.take(1).await;
    // Also when nobody waits for the move any more.
    moving.abort();
    let stop = router.stop();
    tokio::pin!(stop);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut stop).await.is_err());
    host.kernel.resumed.0.add_permits(1);
    stop.await;
    crowd(&host, &router, &["a"]);
    host.kernel.take_log();
    assert_eq!(router.tend_devices(9).await, 0, "a stopping daemon moves nothing");
    assert!(host.kernel.take_log().is_empty());
}

/// A host on which the move of an export's only device has left the device without workers.
async fn stranded() -> (Host, Arc<Router>) {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    crowd(&host, &router, &["a"]);
    host.kernel.fault("relocate", Fault::Fail);
    host.kernel.devices().get_mut(&0).unwrap().quiesced = true;
    assert_eq!(router.tend_devices(9).await, 0, "a move that failed is none");
    assert!(matches!(router.show("a").unwrap().state, State::Failed { .. }));
    host.kernel.take_log();
    (host, router)
}

/// Lets the daemon look so many times whether a device is to be tried again.
async fn look(router: &Arc<Router>, times: usize) {
    for _ in 0..times {
        router.has_to_tend().await;
        assert_eq!(router.tend_devices(9).await, 0);
        tries_ended(router).await;
    }
}

#[tokio::test]
async fn a_device_that_could_not_be_moved_is_recovered_by_the_daemon() {
    let (host, router) = stranded().await;
    assert_eq!(router.tend_devices(9).await, 0);
    assert!(host.kernel.take_log().is_empty(), "not at once");
    look(&router, 1).await;
    assert_eq!(router.show("a").unwrap().state, State::Serving);
    assert!(!host.kernel.devices()[&0].quiesced);
}

#[tokio::test]
async fn a_device_on_the_way_is_tried_again_for_as_long_as_the_daemon_runs() {
    let (host, router) = stranded().await;
    host.kernel.fault("recover", Fault::Fail);
    // Ten tries take a quarter of an hour.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    look(&router, 10).await;
    let minutes = begun.elapsed().as_secs() / 60;
    assert!(minutes >= 3, "the pauses grow: {minutes} min for ten tries");
    assert!(matches!(router.show("a").unwrap().state, State::Failed { .. }));
    assert!(host.kernel.devices()[&0].quiesced, "the device stays, with its requests");
    host.kernel.fault("recover", Fault::None);
    look(&router, 1).await;
    assert_eq!(router.show("a").unwrap().state, State::Serving);
    assert!(!host.kernel.devices()[&0].quiesced);
}

#[tokio::test]
async fn a_device_on_the_way_is_left_alone_when_somebody_has_attached_the_export() {
    let (host, router) = stranded().await;
    assert_eq!(router.attach("a").await.unwrap().state, State::Serving);
    host.kernel.take_log();
    tokio::time::pause();
    // The attach has the daemon look, and so does the time of the next try.
    look(&router, 2).await;
    assert!(host.kernel.take_log().is_empty(), "the export is served");
}

#[tokio::test]
async fn a_device_on_the_way_goes_when_somebody_detaches_the_export() {
    let (host, router) = stranded().await;
    assert_eq!(router.detach("a").await.unwrap().state, State::Detached);
    host.kernel.take_log();
    tokio::time::pause();
    look(&router, 2).await;
    assert!(host.kernel.take_log().is_empty(), "the export is to have no device");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_device_on_the_way() {
    let (host, router) = stranded().await;
    host.kernel.fault("recover", Fault::Hang);
    let trying = tokio::spawn({
        let router = Arc::clone(&router);
        async move { look(&router, 1).await }
    });
    host.kernel.hangs.notified().await;
    router.stop().await;
    trying.await.unwrap();
    assert!(matches!(router.show("a").unwrap().state, State::Failed { .. }));
}
