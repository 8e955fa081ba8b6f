//! Devices under another number than the catalog's, which the catalog does not take and the kernel does not remove.

use std::sync::Arc;

use super::fake::{Fault, Host, catalog_refuses, create, drop_last};
use crate::router::Users;
use crate::router::{Router, RouterError, State};

const MIB: u64 = 1 << 20;

fn numbers(host: &Host) -> Vec<u32> {
    host.kernel.devices().keys().copied().collect()
}

/// A host where the new device of an export has number 1, the catalog says 0, and the device cannot be removed.
async fn with_a_stray_device() -> (Host, Arc<Router>) {
    let host = Host::new();
    let router = host.started().await;
    host.kernel.foreign.lock().unwrap().insert(0);
    host.kernel.fault("attach", Fault::Pause);
    host.kernel.fault("detach", Fault::Fail);
    let creating = tokio::spawn({
        let router = Arc::clone(&router);
        async move { router.create(create("a", MIB)).await }
    });
    host.kernel.paused.take(1).await;
    catalog_refuses(&router, true);
    host.kernel.resumed.0.add_permits(1);
    creating.await.unwrap().unwrap_err();
    host.kernel.fault("attach", Fault::None);
    assert!(router.show("a").unwrap().state.reason().is_some());
    assert_eq!(numbers(&host), [1]);
    (host, router)
}

#[tokio::test]
async fn an_export_with_a_stray_device_gets_no_second_one() {
    let (host, router) = with_a_stray_device().await;
    router.attach("a", true).await.unwrap_err();
    assert_eq!(numbers(&host), [1], "the catalog still refuses the number");
    catalog_refuses(&router, false);
    let info = router.attach("a", true).await.unwrap();
    assert_eq!((info.state, info.device.unwrap().0), (State::Serving, 1));
    assert_eq!(numbers(&host), [1]);
    drop_last(router);
    host.kernel.daemon_died();
    assert_eq!(host.started().await.show("a").unwrap().device.unwrap().0, 1);
    assert_eq!(numbers(&host), [1]);
}

#[tokio::test]
async fn a_device_that_could_be_neither_started_nor_removed_is_found_under_any_number() {
    let host = Host::new();
    let router = host.started().await;
    host.kernel.foreign.lock().unwrap().insert(0);
    host.kernel.fault("attach", Fault::FailAfter);
    router.create(create("a", MIB)).await.unwrap_err();
    host.kernel.fault("attach", Fault::None);
    assert_eq!(router.create(create("a", MIB)).await.unwrap().info.device.unwrap().0, 1);
    assert_eq!(numbers(&host), [1]);
}

#[tokio::test]
async fn an_export_is_detached_only_when_its_stray_device_is_gone() {
    let (host, router) = with_a_stray_device().await;
    catalog_refuses(&router, false);
    router.detach("a", Users::Spare).await.unwrap_err();
    assert!(router.show("a").unwrap().state.reason().is_some());
    host.kernel.fault("detach", Fault::None);
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
    assert!(numbers(&host).is_empty());
    assert_eq!(router.attach("a", true).await.unwrap().state, State::Serving);
    assert_eq!(numbers(&host).len(), 1);
}

#[tokio::test]
async fn an_export_is_deleted_only_when_its_stray_device_is_gone() {
    let (host, router) = with_a_stray_device().await;
    catalog_refuses(&router, false);
    router.delete("a", Users::Spare).await.unwrap_err();
    assert!(host.storage.removed.lock().unwrap().is_empty(), "a device may still show the data");
    host.kernel.fault("detach", Fault::None);
    assert!(router.delete("a", Users::Spare).await.unwrap());
    assert!(numbers(&host).is_empty());
}

#[tokio::test]
async fn a_stray_device_in_use_stays_unless_removed_by_force() {
    let (host, router) = with_a_stray_device().await;
    catalog_refuses(&router, false);
    host.kernel.fault("detach", Fault::None);
    host.kernel.users.lock().unwrap().insert(1, "mounted on /mnt/a");
    assert!(matches!(router.detach("a", Users::Spare).await, Err(RouterError::InUse { .. })));
    assert_eq!(numbers(&host), [1]);
    assert_eq!(router.detach("a", Users::Cut).await.unwrap().state, State::Detached);
    assert!(numbers(&host).is_empty());
}

#[tokio::test]
async fn a_stray_device_is_removed_with_all_devices() {
    let (host, router) = with_a_stray_device().await;
    catalog_refuses(&router, false);
    router.stop().await;
    assert_eq!(router.remove_devices().await, 1, "the device cannot be removed, and is counted");
    assert_eq!(numbers(&host), [1]);
    host.kernel.fault("detach", Fault::None);
    assert_eq!(router.remove_devices().await, 0);
    assert!(numbers(&host).is_empty());
}

#[tokio::test]
async fn a_start_that_cannot_record_the_number_of_a_device_makes_no_second_device() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    drop_last(router);
    // As after a crash between the making of a device under another number and the catalog's write.
    let device = host.kernel.devices().remove(&0).unwrap();
    host.kernel.devices().insert(5, device);
    host.kernel.daemon_died();
    let router = host.router();
    catalog_refuses(&router, true);
    assert_eq!(router.start().await.failed, 1);
    assert_eq!(numbers(&host), [5]);
    assert!(host.kernel.devices()[&5].quiesced, "the device waits with its requests");
    catalog_refuses(&router, false);
    assert_eq!(router.attach("a", true).await.unwrap().device.unwrap().0, 5);
    assert!(!host.kernel.devices()[&5].quiesced);
    assert_eq!(numbers(&host), [5]);
}

/// A host whose daemon has died, with devices 0 and 5 of one export. Neither can be removed, and of `mute` the kernel says nothing.
async fn with_two_devices_of_which_one_is_mute(mute: u32) -> Host {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    drop_last(router);
    let device = host.kernel.devices()[&0].clone();
    host.kernel.devices().insert(5, device);
    host.kernel.daemon_died();
    host.kernel.fault("detach", Fault::Fail);
    host.kernel.mute.lock().unwrap().insert(mute);
    host
}

#[tokio::test]
async fn the_device_of_the_catalog_is_served_also_where_a_start_is_told_of_a_stray_one_only() {
    let host = with_two_devices_of_which_one_is_mute(9).await;
    host.kernel.unlisted.lock().unwrap().insert(0);
    let router = host.router();
    assert_eq!(router.start().await.recovered, 1);
    assert_eq!(router.show("a").unwrap().device.unwrap().0, 0);
    assert!(host.kernel.devices()[&5].quiesced, "the stray device waits");
    router.detach("a", Users::Spare).await.unwrap_err();
    host.kernel.fault("detach", Fault::None);
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
    assert!(numbers(&host).is_empty());
}

#[tokio::test]
async fn the_device_of_the_catalog_is_served_while_the_kernel_says_nothing_about_a_stray_one() {
    let host = with_two_devices_of_which_one_is_mute(5).await;
    let router = host.router();
    assert_eq!(router.start().await.recovered, 1);
    assert_eq!(router.show("a").unwrap().state, State::Serving);
    host.kernel.fault("detach", Fault::None);
    router.detach("a", Users::Spare).await.unwrap_err();
    host.kernel.mute.lock().unwrap().clear();
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
    assert!(numbers(&host).is_empty());
}

#[tokio::test]
async fn a_device_of_which_the_kernel_says_nothing_is_not_forgotten_when_another_one_is_found() {
    let host = with_two_devices_of_which_one_is_mute(0).await;
    let router = host.router();
    assert_eq!(router.start().await.recovered, 1);
    assert_eq!(router.show("a").unwrap().device.unwrap().0, 5);
    host.kernel.fault("detach", Fault::None);
    router.detach("a", Users::Spare).await.unwrap_err();
    assert_eq!(numbers(&host), [0], "the other device may still be there");
    host.kernel.mute.lock().unwrap().clear();
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
    assert!(numbers(&host).is_empty());
}

#[tokio::test]
async fn the_number_of_the_catalog_is_no_stray_device_once_the_kernel_has_none() {
    let (host, router) = with_a_stray_device().await;
    catalog_refuses(&router, false);
    assert_eq!(router.attach("a", true).await.unwrap().device.unwrap().0, 1);
    host.kernel.fault("detach", Fault::None);
    host.kernel.mute.lock().unwrap().insert(0);
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
}

#[tokio::test]
async fn a_detached_export_is_failed_while_the_start_cannot_remove_its_device() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    let orphan = host.kernel.devices()[&0].clone();
    router.detach("a", Users::Spare).await.unwrap();
    drop_last(router);
    host.kernel.devices().insert(5, orphan);
    host.kernel.daemon_died();
    host.kernel.fault("detach", Fault::Fail);
    let router = host.started().await;
    assert!(router.show("a").unwrap().state.reason().is_some(), "the export has a device");
    host.kernel.fault("detach", Fault::None);
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
    assert!(numbers(&host).is_empty());
}
