//! Exports that did not get their device at the start, and get the device later.

use std::sync::Arc;
use std::time::Duration;

use super::fake::{
    Fault, Host, ask_about_all, create, drop_last, release, served, store_is_away, tries_ended,
};
use crate::router::Users;
use crate::router::{Router, State};
use crate::units::ExportId;

const MIB: u64 = 1 << 20;

/// A host with the devices of so many exports, whose daemon has died.
async fn after_a_crash(exports: u32) -> Host {
    let host = Host::new();
    let router = host.started().await;
    for number in 0..exports {
        router.create(create(&format!("e{number}"), MIB)).await.unwrap();
    }
    drop_last(router);
    host.kernel.daemon_died();
    host
}

/// A host whose start could not make the device of its export. The next try can.
async fn without_a_device_after_the_start() -> (Host, Arc<Router>) {
    let mut host = after_a_crash(1).await;
    host.reboot();
    host.kernel.fault("attach", Fault::Fail);
    let router = host.router();
    assert_eq!(router.start().await.failed, 1);
    host.kernel.fault("attach", Fault::None);
    (host, router)
}

/// Lets the time go by until what failed was tried again, at least once.
async fn look(router: &Arc<Router>) {
    tokio::time::sleep(Duration::from_millis(1300)).await;
    tries_ended(router).await;
}

async fn look_until_served(router: &Arc<Router>, name: &str) {
    for _ in 0..20 {
        if router.show(name).unwrap().state == State::Serving {
            return;
        }
        look(router).await;
    }
    panic!("{name} is not served");
}

#[tokio::test]
async fn a_device_that_could_not_be_recovered_at_the_start_is_recovered_later() {
    for call in ["find", "recover"] {
        let host = after_a_crash(2).await;
        host.kernel.fault(call, Fault::Fail);
        let router = host.router();
        assert_eq!(router.start().await.failed, 2);
        tokio::time::pause();
        look(&router).await;
        assert!(router.show("e0").unwrap().state.reason().is_some(), "{call} still fails");
        assert!(host.kernel.devices()[&0].quiesced, "the device stays, with its requests");
        host.kernel.fault(call, Fault::None);
        for name in ["e0", "e1"] {
            look_until_served(&router, name).await;
        }
        assert!(host.kernel.devices().values().all(|device| !device.quiesced));
        tokio::time::resume();
    }
}

#[tokio::test]
async fn an_export_that_got_no_device_at_the_start_gets_one_later() {
    let (host, router) = without_a_device_after_the_start().await;
    tokio::time::pause();
    look_until_served(&router, "e0").await;
    assert_eq!(host.kernel.devices().len(), 1);
}

#[tokio::test]
async fn a_device_that_could_not_be_recovered_when_the_store_had_answered_is_recovered_later() {
    let host = after_a_crash(1).await;
    let router = host.router();
    store_is_away(&router);
    host.kernel.fault("recover", Fault::Fail);
    ask_about_all(&router);
    router.confirm().await;
    assert!(router.show("e0").unwrap().state.reason().is_some());
    host.kernel.fault("recover", Fault::None);
    tokio::time::pause();
    look_until_served(&router, "e0").await;
    assert!(!host.kernel.devices()[&0].quiesced);
}

#[tokio::test]
async fn a_failed_export_is_left_alone_once_it_is_to_have_no_device() {
    let host = after_a_crash(1).await;
    host.kernel.fault("recover", Fault::Fail);
    let router = host.router();
    assert_eq!(router.start().await.failed, 1);
    host.kernel.fault("recover", Fault::None);
    assert_eq!(router.detach("e0", Users::Spare).await.unwrap().state, State::Detached);
    host.kernel.take_log();
    tokio::time::pause();
    look(&router).await;
    assert!(host.kernel.take_log().is_empty());
}

#[tokio::test]
async fn a_failed_export_is_left_alone_once_it_is_released() {
    let (host, router) = without_a_device_after_the_start().await;
    release(&router, "e0").await;
    host.kernel.take_log();
    tokio::time::pause();
    look(&router).await;
    assert!(host.kernel.take_log().is_empty(), "another host may have the export");
}

#[tokio::test]
async fn no_more_exports_are_tried_again_at_once_than_are_started_at_once() {
    let mut host = after_a_crash(10).await;
    host.options.parallel_max = 3;
    host.kernel.fault("recover", Fault::Fail);
    let router = host.router();
    assert_eq!(router.start().await.failed, 10);
    host.kernel.fault("recover", Fault::None);
    host.kernel.running_max.store(0, std::sync::atomic::Ordering::SeqCst);
    *host.kernel.delay.lock().unwrap() = Duration::from_secs(2);
    tokio::time::pause();
    for number in 0..10 {
        served(&router, &format!("e{number}")).await;
    }
    assert_eq!(host.kernel.running_max.load(std::sync::atomic::Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_slow_try_holds_up_no_other_try() {
    let host = after_a_crash(2).await;
    host.kernel.broken.lock().unwrap().extend([ExportId(1), ExportId(2)]);
    let router = host.router();
    assert_eq!(router.start().await.failed, 2);
    tokio::time::pause();
    host.kernel.broken.lock().unwrap().clear();
    host.kernel.slow.lock().unwrap().insert(ExportId(1));
    host.kernel.take_log();
    while host.kernel.take_log().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served(&router, "e1").await;
    assert_ne!(router.show("e0").unwrap().state, State::Serving);
    host.kernel.resumed.0.add_permits(8);
    served(&router, "e0").await;
}

#[tokio::test]
async fn exports_that_failed_together_are_not_tried_again_together() {
    let host = after_a_crash(5).await;
    host.kernel.fault("recover", Fault::Fail);
    let router = host.router();
    tokio::time::pause();
    assert_eq!(router.start().await.failed, 5);
    host.kernel.take_log();
    let mut tried = 0;
    while tried == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        tried = host.kernel.take_log().iter().filter(|call| call.starts_with("recover")).count();
    }
    assert!(tried < 5, "{tried} of 5 exports were tried at the same moment");
}
