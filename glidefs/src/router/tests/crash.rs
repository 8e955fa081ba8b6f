//! The start after a crash at any step of an operation.

use std::sync::Arc;
use std::time::Duration;

use super::fake::{FakeDevice, Fault, Host, create};
use crate::router::Users;
use crate::router::{Router, State};
use crate::units::ExportId;

const MIB: u64 = 1 << 20;

/// Runs `work` on a router in a separate runtime, and ends the runtime when a call hangs: the daemon dies in the middle of the
/// call.
fn killed_while<F>(host: &Host, work: impl FnOnce(Arc<Router>) -> F)
where
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let router = host.started().await;
        let killed = async {
            tokio::select! {
                () = work(router) => {}
                () = host.kernel.hangs.notified() => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(30), killed).await.expect("the work neither ends nor hangs");
    });
    drop(runtime);
    host.kernel.daemon_died();
}

fn after_restart<T>(host: &Host, check: impl AsyncFnOnce(Arc<Router>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let router = host.started().await;
        check(router).await
    })
}

#[test]
fn a_crash_at_any_step_of_create_leaves_one_export_with_one_device() {
    for fault in [Fault::Hang, Fault::HangBefore] {
        let host = Host::new();
        killed_while(&host, async |router| {
            host.kernel.fault("attach", fault);
            let _ = router.create(create("a", MIB)).await;
        });
        after_restart(&host, async |router| {
            assert_eq!(router.show("a").unwrap().state, State::Serving, "{fault:?}");
            assert_eq!(host.kernel.devices().len(), 1, "{fault:?}");
            assert!(host.kernel.devices().values().all(|device| !device.quiesced));
        });
    }
}

#[test]
fn a_device_made_under_another_number_just_before_a_crash_is_found_and_kept() {
    let host = Host::new();
    host.kernel.foreign.lock().unwrap().insert(0);
    killed_while(&host, async |router| {
        host.kernel.fault("attach", Fault::Hang);
        let _ = router.create(create("a", MIB)).await;
    });
    after_restart(&host, async |router| {
        assert_eq!(router.show("a").unwrap().device.unwrap().0, 1);
        assert_eq!(host.kernel.devices().len(), 1);
    });
}

#[test]
fn a_crash_at_any_step_of_detach_ends_detached() {
    for fault in [Fault::Hang, Fault::HangBefore] {
        let host = Host::new();
        killed_while(&host, async |router| {
            router.create(create("a", MIB)).await.unwrap();
            host.kernel.fault("detach", fault);
            let _ = router.detach("a", Users::Spare).await;
        });
        after_restart(&host, async |router| {
            assert_eq!(router.show("a").unwrap().state, State::Detached, "{fault:?}");
            assert!(host.kernel.devices().is_empty(), "{fault:?}");
        });
    }
}

#[test]
fn a_crash_at_any_step_of_delete_ends_deleted() {
    for fault in [Fault::Hang, Fault::HangBefore] {
        let host = Host::new();
        killed_while(&host, async |router| {
            router.create(create("a", MIB)).await.unwrap();
            host.kernel.fault("detach", fault);
            let _ = router.delete("a", Users::Spare).await;
        });
        after_restart(&host, async |router| {
            assert!(router.list().is_empty(), "{fault:?}");
            assert!(host.kernel.devices().is_empty(), "{fault:?}");
            assert_eq!(*host.storage.removed.lock().unwrap(), [ExportId(1)]);
            let id = router.create(create("a", MIB)).await.unwrap().info.id;
            assert_eq!(id, ExportId(2), "the id is not given again");
        });
    }
}

#[test]
fn a_device_of_an_export_nobody_knows_is_removed() {
    let host = Host::new();
    killed_while(&host, async |router| {
        router.create(create("a", MIB)).await.unwrap();
    });
    let stray = FakeDevice { export: ExportId(99), size_bytes: MIB, quiesced: true };
    host.kernel.devices().insert(7, stray);
    after_restart(&host, async |router| {
        assert_eq!(router.list().len(), 1);
        assert_eq!(host.kernel.devices().keys().copied().collect::<Vec<_>>(), [0]);
    });
}

#[tokio::test]
async fn waiting_devices_come_first_and_at_most_as_many_at_once_as_allowed() {
    let mut host = Host::new();
    host.options.parallel_max = 3;
    let router = host.started().await;
    for n in 0..10 {
        router.create(create(&format!("e{n}"), MIB)).await.unwrap();
    }
    super::fake::drop_last(router);
    host.kernel.daemon_died();
    for number in [0, 1, 2, 3] {
        host.kernel.devices().get_mut(&number).unwrap().quiesced = false;
    }
    host.kernel.devices().remove(&5);
    host.kernel.take_log();
    host.kernel.running_max.store(0, std::sync::atomic::Ordering::SeqCst);
    *host.kernel.delay.lock().unwrap() = Duration::from_millis(5);
    let router = host.router();
    let report = router.start().await;
    assert_eq!((report.recovered, report.attached, report.failed), (9, 1, 0));
    assert_eq!(host.kernel.running_max.load(std::sync::atomic::Ordering::SeqCst), 3);
    let order: Vec<_> = host.kernel.take_log().into_iter().filter(|line| !line.starts_with("find")).collect();
    let waiting = ["recover 4", "recover 6", "recover 7", "recover 8", "recover 9"];
    assert!(order[..5].iter().all(|line| waiting.contains(&line.as_str())), "{order:?}");
}

#[tokio::test]
async fn one_export_that_fails_stops_no_other_and_is_tried_again_by_attach() {
    let host = Host::new();
    let router = host.started().await;
    for n in 0..6 {
        router.create(create(&format!("e{n}"), MIB)).await.unwrap();
    }
    super::fake::drop_last(router);
    host.kernel.daemon_died();
    host.kernel.broken.lock().unwrap().insert(ExportId(3));
    let router = host.router();
    let report = router.start().await;
    assert_eq!((report.recovered, report.failed), (5, 1));
    assert!(router.show("e2").unwrap().state.reason().is_some());
    assert_eq!(host.kernel.devices().len(), 6, "the device that waits is not removed");
    host.kernel.broken.lock().unwrap().clear();
    assert_eq!(router.attach("e2", true).await.unwrap().state, State::Serving);
    assert_eq!(host.kernel.devices().len(), 6);
}

#[tokio::test]
async fn after_a_reboot_every_export_gets_a_new_device_of_the_same_number() {
    let mut host = Host::new();
    let router = host.started().await;
    for name in ["a", "b", "c"] {
        router.create(create(name, MIB)).await.unwrap();
    }
    router.delete("a", Users::Spare).await.unwrap();
    router.detach("b", Users::Spare).await.unwrap();
    super::fake::drop_last(router);
    host.reboot();
    let router = host.started().await;
    assert_eq!(router.show("c").unwrap().device.unwrap().0, 2);
    assert_eq!(router.show("b").unwrap().state, State::Detached);
    assert_eq!(host.kernel.devices().len(), 1);
}

#[tokio::test]
async fn operations_on_a_loaded_export_wait_for_its_recovery_and_new_exports_do_not() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    super::fake::drop_last(router);
    host.kernel.daemon_died();
    let router = host.router();
    assert_eq!(router.show("a").unwrap().state, State::Recovering);
    let waiting = tokio::time::timeout(Duration::from_millis(20), router.attach("a", true)).await;
    assert!(waiting.is_err());
    router.create(create("b", MIB)).await.unwrap();
    router.start().await;
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
}

#[tokio::test]
async fn a_device_made_while_the_start_lists_the_devices_stays_and_one_of_no_export_goes() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    super::fake::drop_last(router);
    host.kernel.daemon_died();
    let nobodys = FakeDevice { export: ExportId(1000), size_bytes: MIB, quiesced: true };
    host.kernel.devices().insert(900, nobodys);
    let router = host.router();
    let listing = host.kernel.listing.lock().await;
    let starting = tokio::spawn({
        let router = Arc::clone(&router);
        async move { router.start().await }
    });
    let made = router.create(create("new", MIB)).await.unwrap().info;
    drop(listing);
    let report = starting.await.unwrap();
    assert_eq!((report.recovered, report.orphans_removed), (1, 1));
    assert_eq!(router.show("new").unwrap().state, State::Serving);
    let devices = host.kernel.devices();
    assert_eq!(devices.get(&made.device.unwrap().0).map(|device| device.export), Some(made.id));
    assert!(!devices.contains_key(&900) && devices.len() == 2, "{devices:?}");
}
