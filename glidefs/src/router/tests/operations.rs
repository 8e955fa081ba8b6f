//! Create, attach, resize and stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::fake::{Fault, Host, catalog_is_closed, create, drop_last};
use crate::properties::PropertiesChange;
use crate::properties::limits::{Limit, Limits, LimitsChange};
use crate::router::Users;
use crate::router::{CreateExport, ExportName, ExportSize, InitialContent, Router, RouterError, State};
use crate::units::ExportId;

const MIB: u64 = 1 << 20;

fn size(bytes: u64) -> ExportSize {
    ExportSize::new(bytes).unwrap()
}

#[tokio::test]
async fn creating_what_exists_with_the_same_parameters_is_the_answer_and_with_others_a_conflict() {
    let host = Host::new();
    let router = host.started().await;
    let first = router.create(create("a", MIB)).await.unwrap();
    assert!(!first.existed);
    let again = router.create(create("a", MIB)).await.unwrap();
    assert!(again.existed);
    assert_eq!(again.info, first.info);
    assert!(matches!(
        router.create(create("a", 2 * MIB)).await,
        Err(RouterError::OtherParameter { parameter: "size", existing: MIB, .. })
    ));
    let mut deeper = create("a", MIB);
    deeper.queue_depth = Some(128);
    assert!(matches!(
        router.create(deeper).await,
        Err(RouterError::OtherParameter { parameter: "queue_depth", .. })
    ));
    assert_eq!(host.kernel.devices().len(), 1);
}

#[tokio::test]
async fn parameters_out_of_bounds_are_refused_before_anything_is_done() {
    let host = Host::new();
    let router = host.started().await;
    for (queues, queue_depth) in [(Some(0), None), (Some(129), None), (None, Some(0)), (None, Some(4097))] {
        let request = CreateExport { queues, queue_depth, ..create("a", MIB) };
        assert!(matches!(router.create(request).await, Err(RouterError::Parameter { .. })));
    }
    assert!(router.list().is_empty());
}

#[tokio::test]
async fn the_limit_of_exports_holds_and_deleting_makes_room() {
    let host = Host::new();
    let router = host.started().await;
    for n in 0..host.options.exports_max {
        router.create(create(&format!("e{n}"), MIB)).await.unwrap();
    }
    assert!(matches!(router.create(create("more", MIB)).await, Err(RouterError::TooMany { max: 16 })));
    assert!(router.create(create("e0", MIB)).await.unwrap().existed, "what exists is not one more");
    router.delete("e3", Users::Spare).await.unwrap();
    let info = router.create(create("more", MIB)).await.unwrap().info;
    assert_eq!(info.device.unwrap().0, 3, "the number of a deleted export is used again");
    assert_eq!(info.id, ExportId(17), "its id is not");
}

#[tokio::test]
async fn an_export_that_is_made_detached_has_no_device_until_it_is_attached_also_after_a_restart() {
    let host = Host::new();
    let router = host.started().await;
    let detached = CreateExport { detached: true, ..create("a", MIB) };
    for existed in [false, true] {
        let made = router.create(detached.clone()).await.unwrap();
        assert_eq!((made.existed, made.info.state, made.info.device), (existed, State::Detached, None));
    }
    drop_last(router);
    let router = host.started().await;
    assert_eq!(router.show("a").unwrap().state, State::Detached);
    assert!(router.create(create("a", MIB)).await.unwrap().existed);
    assert!(host.kernel.devices().is_empty(), "what exists stays as it is");
    let number = router.attach("a", true).await.unwrap().device.unwrap().0;
    assert_eq!(host.kernel.devices()[&number].size_bytes, MIB);
    assert!(router.create(detached).await.unwrap().existed);
    assert_eq!(router.show("a").unwrap().state, State::Serving);
    router.create(CreateExport { detached: true, ..create("b", MIB) }).await.unwrap();
    assert!(router.delete("b", Users::Spare).await.unwrap());
}

#[tokio::test]
async fn growing_reaches_the_device_and_shrinking_is_refused() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    assert_eq!(router.resize("a", size(2 * MIB)).await.unwrap().size_bytes, 2 * MIB);
    assert_eq!(host.kernel.devices()[&0].size_bytes, 2 * MIB);
    assert!(matches!(router.resize("a", size(MIB)).await, Err(RouterError::Shrink { .. })));
    router.detach("a", Users::Spare).await.unwrap();
    router.resize("a", size(4 * MIB)).await.unwrap();
    router.attach("a", true).await.unwrap();
    assert_eq!(host.kernel.devices()[&0].size_bytes, 4 * MIB);
}

#[tokio::test]
async fn a_size_the_kernel_could_not_be_told_is_told_when_asked_again_or_after_a_restart() {
    let host = Host::new();
    let router = host.started().await;
    for name in ["a", "b"] {
        router.create(create(name, MIB)).await.unwrap();
    }
    host.kernel.fault("resize", Fault::Fail);
    for name in ["a", "b"] {
        assert!(matches!(router.resize(name, size(2 * MIB)).await, Err(RouterError::SizeNotTold { .. })));
    }
    host.kernel.fault("resize", Fault::None);
    router.resize("a", size(2 * MIB)).await.unwrap();
    assert_eq!(host.kernel.devices()[&0].size_bytes, 2 * MIB);
    drop_last(router);
    host.kernel.daemon_died();
    let router = host.started().await;
    assert_eq!(router.show("b").unwrap().size_bytes, 2 * MIB);
    assert_eq!(host.kernel.devices()[&1].size_bytes, 2 * MIB);
}

#[tokio::test]
async fn an_export_whose_first_device_is_refused_by_the_limit_is_not_kept() {
    let host = Host::new();
    let router = host.started().await;
    *host.kernel.limit.lock().unwrap() = Some(1);
    router.create(create("a", MIB)).await.unwrap();
    let error = router.create(create("b", MIB)).await.unwrap_err();
    assert!(crate::observe::chain(&error).contains("ublks_max"), "{error}");
    assert_eq!(router.list().len(), 1);
    drop_last(router);
    assert_eq!(host.started().await.list().len(), 1);
}

#[tokio::test]
async fn an_export_that_gets_no_device_leaves_the_store_as_it_was() {
    let host = Host::new();
    let router = host.started().await;
    *host.storage.has_store.lock().unwrap() = true;
    *host.kernel.limit.lock().unwrap() = Some(0);
    let opened = CreateExport { content: InitialContent::Store, ..create("a", MIB) };
    router.create(opened).await.unwrap_err();
    assert!(host.storage.deleted.lock().unwrap().is_empty(), "what was opened is somebody's data");
    router.create(create("b", MIB)).await.unwrap_err();
    assert_eq!(host.storage.deleted.lock().unwrap().len(), 1, "what was made for it goes with it");
    assert!(router.list().is_empty());
}

#[tokio::test]
async fn an_export_whose_first_device_failed_stays_failed_with_the_reason_until_it_is_tried_again() {
    let host = Host::new();
    let router = host.started().await;
    host.kernel.fault("attach", Fault::Fail);
    router.create(create("a", MIB)).await.unwrap_err();
    let info = router.show("a").unwrap();
    assert_eq!(info.device, None);
    assert!(info.state.reason().unwrap().contains("FAKE on /dev/ublkb0 failed: "), "{:?}", info.state);
    host.kernel.fault("attach", Fault::None);
    assert_eq!(router.create(create("a", MIB)).await.unwrap().info.state, State::Serving);
}

#[tokio::test]
async fn a_device_that_was_made_although_the_call_failed_is_taken_over_not_doubled() {
    let host = Host::new();
    let router = host.started().await;
    host.kernel.fault("attach", Fault::FailAfter);
    router.create(create("a", MIB)).await.unwrap_err();
    host.kernel.fault("attach", Fault::None);
    router.attach("a", true).await.unwrap();
    assert_eq!(host.kernel.devices().len(), 1);
    assert_eq!(host.kernel.take_log(), ["attach 0", "find 0", "recover 0"]);
}

#[tokio::test]
async fn a_number_taken_by_somebody_else_is_replaced_by_the_one_the_kernel_gave() {
    let host = Host::new();
    host.kernel.foreign.lock().unwrap().insert(0);
    let router = host.started().await;
    assert_eq!(router.create(create("a", MIB)).await.unwrap().info.device.unwrap().0, 1);
    drop_last(router);
    host.kernel.daemon_died();
    let router = host.started().await;
    assert_eq!(router.show("a").unwrap().device.unwrap().0, 1);
    assert_eq!(host.kernel.devices().len(), 1);
}

#[tokio::test]
async fn operations_on_one_export_serialise_and_those_on_others_run_in_parallel() {
    let host = Host::new();
    let router = host.started().await;
    *host.kernel.delay.lock().unwrap() = Duration::from_millis(20);
    let same: Vec<_> = (0..4).map(|_| router.create(create("a", MIB))).collect();
    let created = futures_util::future::join_all(same).await;
    assert_eq!(created.iter().filter(|result| !result.as_ref().unwrap().existed).count(), 1);
    assert_eq!(host.kernel.running_max.load(Ordering::SeqCst), 1);

    host.kernel.meeting.store(8, Ordering::SeqCst);
    let others: Vec<_> = (0..8).map(|n| router.create(create(&format!("e{n}"), MIB))).collect();
    assert!(futures_util::future::join_all(others).await.iter().all(Result::is_ok));
    assert_eq!(host.kernel.running_max.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn an_operation_is_finished_although_its_caller_went_away() {
    let host = Host::new();
    let router = host.started().await;
    *host.kernel.delay.lock().unwrap() = Duration::from_millis(20);
    let gone = tokio::time::timeout(Duration::from_millis(5), router.create(create("a", MIB))).await;
    assert!(gone.is_err());
    assert_eq!(router.attach("a", true).await.unwrap().state, State::Serving);
    assert_eq!(host.kernel.take_log(), ["attach 0"]);
}

#[tokio::test]
async fn a_router_that_stops_finishes_what_runs_and_refuses_what_comes() {
    let host = Host::new();
    let router = host.started().await;
    *host.kernel.delay.lock().unwrap() = Duration::from_millis(20);
    let running = tokio::spawn({
        let router = Arc::clone(&router);
        async move { router.create(create("a", MIB)).await }
    });
    tokio::time::sleep(Duration::from_millis(5)).await;
    router.stop().await;
    assert!(running.await.unwrap().is_ok());
    assert!(matches!(router.create(create("b", MIB)).await, Err(RouterError::Stopping)));
    assert_eq!(router.remove_devices().await, 0);
    assert!(host.kernel.devices().is_empty());
    drop_last(router);
    *host.kernel.delay.lock().unwrap() = Duration::ZERO;
    assert_eq!(
        host.started().await.show("a").unwrap().state,
        State::Serving,
        "it is attached at the next start"
    );
}

#[tokio::test]
async fn what_does_not_exist_is_named() {
    let host = Host::new();
    let router = host.started().await;
    for error in [
        router.show("x").unwrap_err(),
        router.attach("x", true).await.unwrap_err(),
        router.detach("x", Users::Spare).await.unwrap_err(),
        router.resize("x", size(MIB)).await.unwrap_err(),
    ] {
        assert!(matches!(&error, RouterError::NotFound { name } if name == "x"), "{error}");
    }
    assert!(ExportName::new("x/y").is_err());
}

fn limited(rate: u64, weight: u64) -> PropertiesChange {
    let limits = LimitsChange { write_iops: Some(Some(rate)), ..LimitsChange::default() };
    PropertiesChange { limits, weight: Some(weight), ..PropertiesChange::default() }
}

#[tokio::test]
async fn settings_are_in_force_at_once_and_survive_a_restart_and_a_resize() {
    let host = Host::new();
    let router = host.started().await;
    let request = CreateExport { properties: limited(1000, 7), ..create("a", MIB) };
    assert_eq!(router.create(request.clone()).await.unwrap().info.properties.settings.weight, 7);
    let in_force = |router: &Router| {
        let export = router.exports().remove(0);
        let rate = export.throttle().and_then(|throttle| throttle.figures().find_map(|figures| figures.rate));
        (rate, export.volume().weight())
    };
    assert_eq!(in_force(&router), (Some(1000), 7));
    for _ in 0..2 {
        let info = router.set("a", limited(2000, 8)).await.unwrap();
        assert_eq!(
            (info.properties.settings.limits.rate(Limit::WriteIops), info.properties.settings.weight),
            (Some(2000), 8)
        );
    }
    router.resize("a", size(2 * MIB)).await.unwrap();
    drop_last(router);
    let router = host.started().await;
    assert_eq!(in_force(&router), (Some(2000), 8));
    let limits = LimitsChange { write_iops: Some(None), ..LimitsChange::default() };
    let ended = PropertiesChange { limits, ..PropertiesChange::default() };
    assert_eq!(router.set("a", ended).await.unwrap().properties.settings.limits, Limits::default());
    assert_eq!(in_force(&router), (None, 8));
    assert!(matches!(router.set("b", ended).await, Err(RouterError::NotFound { .. })));
}

#[tokio::test]
async fn an_export_has_nothing_for_io_before_its_first_device_and_then_what_was_set_meanwhile() {
    let mut host = Host::new();
    *host.storage.has_store.lock().unwrap() = false;
    let router = host.started().await;
    let detached = CreateExport { detached: true, ..create("a", MIB) };
    router.create(detached.clone()).await.unwrap();
    assert!(router.create(detached).await.unwrap().existed);
    router.set("a", limited(1000, 7)).await.unwrap();
    router.resize("a", size(2 * MIB)).await.unwrap();
    drop_last(router);
    host.reboot();
    let router = host.started().await;
    router.set("a", limited(2000, 8)).await.unwrap();
    router.resize("a", size(3 * MIB)).await.unwrap();
    assert!(router.exports().is_empty(), "a record is all there is");
    let info = router.attach("a", true).await.unwrap();
    assert_eq!((info.state, info.size_bytes), (State::Serving, 3 * MIB));
    let export = router.exports().remove(0);
    let rate = export.throttle().and_then(|throttle| throttle.figures().find_map(|figures| figures.rate));
    assert_eq!((export.size_bytes(), rate, export.volume().weight()), (3 * MIB, Some(2000), 8));
    assert_eq!(host.kernel.devices().values().next().unwrap().size_bytes, 3 * MIB);
    router.detach("a", Users::Spare).await.unwrap();
    assert!(router.delete("a", Users::Spare).await.unwrap());
}

#[tokio::test]
async fn after_a_start_an_export_has_what_io_needs_if_the_cache_has_data_of_the_export() {
    for has_data in [false, true] {
        let host = Host::new();
        let router = host.started().await;
        let id = router.create(CreateExport { detached: true, ..create("a", MIB) }).await.unwrap().info.id;
        assert!(router.exports().is_empty());
        drop_last(router);
        *host.storage.has_data.lock().unwrap() = has_data;
        let router = host.started().await;
        assert_eq!(router.exports().len(), usize::from(has_data));
        assert_eq!(host.storage.made.lock().unwrap().contains(&id), has_data);
    }
}

#[tokio::test]
async fn a_creation_without_a_record_leaves_nothing_that_could_be_opened_after_its_removal() {
    for detached in [false, true] {
        let host = Host::new();
        let router = host.started().await;
        catalog_is_closed(&router);
        let created = router.create(CreateExport { detached, ..create("a", MIB) }).await;
        assert!(matches!(created, Err(RouterError::Catalog(_))), "{created:?}");
        assert!(router.list().is_empty());
        let removed = host.storage.removed.lock().unwrap().clone();
        assert_eq!(removed.len(), 1);
        // Whoever still has the entry finds a volume that the cache has removed, and makes no other.
        assert_eq!(*host.storage.made.lock().unwrap(), removed);
    }
}

#[tokio::test]
async fn an_export_without_a_device_that_was_never_attached_is_deleted_in_cache_and_store() {
    let host = Host::new();
    *host.storage.has_store.lock().unwrap() = true;
    let router = host.started().await;
    let id = router.create(CreateExport { detached: true, ..create("a", MIB) }).await.unwrap().info.id;
    assert!(router.exports().is_empty());
    assert!(router.delete("a", Users::Spare).await.unwrap());
    assert_eq!(*host.storage.deleted.lock().unwrap(), [id]);
    assert_eq!(*host.storage.removed.lock().unwrap(), [id]);
}

#[tokio::test]
async fn creating_what_exists_with_other_settings_is_a_conflict_and_without_any_is_not() {
    let host = Host::new();
    let router = host.started().await;
    let with = |settings| CreateExport { properties: settings, ..create("a", MIB) };
    router.create(with(limited(1000, 7))).await.unwrap();
    for settings in [limited(1000, 7), PropertiesChange::default()] {
        assert!(router.create(with(settings)).await.unwrap().existed);
    }
    for settings in [limited(1001, 7), limited(1000, 8)] {
        assert!(matches!(router.create(with(settings)).await, Err(RouterError::OtherProperty { .. })));
    }
    for settings in [limited(0, 7), limited(1, 0), limited(1, 1001)] {
        assert!(matches!(router.set("a", settings).await, Err(RouterError::Parameter { .. })));
        assert!(matches!(
            router.create(CreateExport { properties: settings, ..create("b", MIB) }).await,
            Err(RouterError::Parameter { .. })
        ));
    }
    assert_eq!(router.list().len(), 1);
}

#[tokio::test]
async fn at_the_start_an_export_without_a_device_waits_for_no_other() {
    let host = Host::new();
    let before = host.started().await;
    before.create(create("busy", 1 << 20)).await.unwrap();
    before.create(CreateExport { detached: true, ..create("idle", 1 << 20) }).await.unwrap();
    drop_last(before);
    host.kernel.daemon_died();
    host.kernel.fault("recover", Fault::HangBefore);
    let router = host.router();
    let starting = tokio::spawn({
        let router = Arc::clone(&router);
        async move { router.start().await }
    });
    host.kernel.hangs.notified().await;
    let states: Vec<_> = router.list().into_iter().map(|info| info.state).collect();
    assert_eq!(states, [State::Recovering, State::Detached]);
    assert!(router.delete("idle", Users::Spare).await.unwrap());
    router.create(CreateExport { detached: true, ..create("new", 1 << 20) }).await.unwrap();
    starting.abort();
}

#[tokio::test]
async fn an_export_without_a_stable_path_is_served_and_says_why_until_a_path_is_had() {
    let host = Host::new();
    let router = host.started().await;
    let path = |router: &Router| router.show("a").unwrap().path;
    *host.kernel.no_path.lock().unwrap() = Some("no /dev");
    let created = router.create(create("a", MIB)).await.unwrap();
    assert_eq!((created.info.state, created.info.path), (State::Serving, Some(Err("no /dev".into()))));
    *host.kernel.no_path.lock().unwrap() = None;
    router.attach("a", true).await.unwrap();
    assert_eq!(path(&router), Some(Ok("/dev/glidefs/a".into())));
    *host.kernel.no_path.lock().unwrap() = Some("lost");
    router.attach("a", true).await.unwrap();
    assert_eq!(path(&router), Some(Err("lost".into())), "an attach looks again");
    *host.kernel.no_path.lock().unwrap() = None;
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().path, None);
    router.attach("a", true).await.unwrap();
    drop_last(router);
    host.kernel.daemon_died();
    let router = host.started().await;
    assert_eq!(path(&router), Some(Ok("/dev/glidefs/a".into())), "the path of a recovered device");
}
