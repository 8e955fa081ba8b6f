//! Detach and delete, and the devices that both leave alone.

use std::time::Duration;

use super::fake::{Fault, Host, create, drop_last};
use crate::router::Users;
use crate::router::{ExportSize, RouterError, State};
use crate::units::ExportId;

const MIB: u64 = 1 << 20;

fn size(bytes: u64) -> ExportSize {
    ExportSize::new(bytes).unwrap()
}

#[tokio::test]
async fn detach_keeps_the_data_and_attach_gives_the_same_number_back() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    let number = router.create(create("b", MIB)).await.unwrap().info.device;
    let info = router.detach("b", Users::Spare).await.unwrap();
    assert_eq!((info.state, info.device), (State::Detached, None));
    assert_eq!(
        router.detach("b", Users::Spare).await.unwrap().state,
        State::Detached,
        "detaching twice is no error"
    );
    router.create(create("c", MIB)).await.unwrap();
    assert_eq!(router.attach("b", true).await.unwrap().device, number);
    assert_eq!(router.attach("b", true).await.unwrap().device, number, "attaching twice is no error");
    assert!(host.storage.removed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn delete_removes_device_data_and_entry_and_may_be_repeated() {
    let host = Host::new();
    let router = host.started().await;
    let id = router.create(create("a", MIB)).await.unwrap().info.id;
    assert!(router.delete("a", Users::Spare).await.unwrap());
    assert!(!router.delete("a", Users::Spare).await.unwrap());
    assert!(host.kernel.devices().is_empty() && router.list().is_empty());
    assert_eq!(*host.storage.removed.lock().unwrap(), [id]);
    drop_last(router);
    assert!(host.started().await.list().is_empty());
}

#[tokio::test]
async fn a_failed_delete_is_finished_by_another_and_by_nothing_else() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    host.kernel.fault("detach", Fault::Fail);
    router.delete("a", Users::Spare).await.unwrap_err();
    assert!(matches!(router.attach("a", true).await, Err(RouterError::HalfDeleted { .. })));
    assert!(matches!(router.detach("a", Users::Spare).await, Err(RouterError::HalfDeleted { .. })));
    assert!(matches!(router.resize("a", size(2 * MIB)).await, Err(RouterError::HalfDeleted { .. })));
    host.kernel.fault("detach", Fault::None);
    assert!(router.delete("a", Users::Spare).await.unwrap());
    assert!(host.kernel.devices().is_empty());
}

#[tokio::test]
async fn a_delete_that_failed_half_way_says_what_is_left_and_has_freed_the_cache() {
    let host = Host::new();
    let router = host.started().await;
    let id = router.create(create("a", MIB)).await.unwrap().info.id;
    *host.storage.keeps.lock().unwrap() = true;
    let error = router.delete("a", Users::Spare).await.unwrap_err().to_string();
    assert!(error.contains("left are its volume in the store and its catalog entry"), "{error}");
    assert!(router.show("a").unwrap().state.reason().unwrap().contains("left are its volume"));
    assert!(host.kernel.devices().is_empty());
    assert_eq!(
        *host.storage.removed.lock().unwrap(),
        [id],
        "what fills the cache does not wait for the store"
    );
    *host.storage.keeps.lock().unwrap() = false;
    assert!(router.delete("a", Users::Spare).await.unwrap());
    assert_eq!(*host.storage.deleted.lock().unwrap(), [id]);
    assert!(!router.delete("a", Users::Spare).await.unwrap());
}

#[tokio::test]
async fn a_device_in_use_is_removed_by_force_only_and_the_refusal_changes_nothing() {
    let host = Host::new();
    let router = host.started().await;
    for name in ["a", "b"] {
        router.create(create(name, MIB)).await.unwrap();
    }
    host.kernel.users.lock().unwrap().extend([(0, "mounted on /mnt/a"), (1, "used as swap")]);
    host.kernel.take_log();
    for error in [
        router.detach("a", Users::Spare).await.unwrap_err(),
        router.delete("a", Users::Spare).await.unwrap_err(),
    ] {
        assert!(matches!(&error, RouterError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("/dev/ublkb0 is mounted on /mnt/a"), "{error}");
    }
    assert_eq!(host.kernel.take_log(), ["find 0"; 2]);
    assert_eq!(router.show("a").unwrap().state, State::Serving);
    drop_last(router);
    host.kernel.daemon_died();
    let router = host.started().await;
    assert_eq!(router.show("a").unwrap().state, State::Serving, "nor was it written down");
    assert_eq!(router.detach("a", Users::Cut).await.unwrap().state, State::Detached);
    assert!(router.delete("b", Users::Cut).await.unwrap());
    assert!(host.kernel.devices().is_empty());
}

#[tokio::test]
async fn a_device_stays_while_nobody_can_tell_who_uses_it_unless_removed_by_force() {
    let host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    *host.kernel.users_hang.lock().unwrap() = true;
    host.kernel.take_log();
    tokio::time::pause();
    for (action, detaches) in [("detach", true), ("delete", false)] {
        let asked = async {
            if detaches {
                router.detach("a", Users::Spare).await.map(drop)
            } else {
                router.delete("a", Users::Spare).await.map(drop)
            }
        };
        let answer = tokio::time::timeout(Duration::from_hours(1), asked).await;
        let error = answer.expect("an answer comes in time").unwrap_err();
        assert!(matches!(&error, RouterError::UserUnknown { .. }), "{error}");
        assert!(error.to_string().contains(&format!("glidefs export {action} a --force")), "{error}");
    }
    tokio::time::resume();
    assert_eq!(host.kernel.take_log(), ["find 0"; 2]);
    assert_eq!(router.show("a").unwrap().state, State::Serving);
    drop_last(router);
    host.kernel.daemon_died();
    let router = host.started().await;
    assert_eq!(router.show("a").unwrap().state, State::Serving, "nor was it written down");
    assert_eq!(router.detach("a", Users::Cut).await.unwrap().state, State::Detached);
    assert!(host.kernel.devices().is_empty());
}

#[tokio::test]
async fn a_deletion_that_was_not_finished_delays_no_start_and_no_stop() {
    let host = Host::new();
    let router = host.started().await;
    for name in ["a", "b"] {
        router.create(create(name, MIB)).await.unwrap();
    }
    *host.storage.keeps.lock().unwrap() = true;
    router.delete("a", Users::Spare).await.unwrap_err();
    drop_last(router);
    host.kernel.daemon_died();
    *host.storage.hangs.lock().unwrap() = true;
    let router = host.router();
    let started = tokio::time::timeout(Duration::from_mins(1), router.start()).await;
    started.expect("the start waits for the deletion");
    assert_eq!(router.show("b").unwrap().state, State::Serving);
    assert_eq!(router.show("a").unwrap().state, State::Deleting);
    tokio::time::timeout(Duration::from_mins(1), router.stop())
        .await
        .expect("the stop waits for the deletion");
    drop_last(router);
    *host.storage.hangs.lock().unwrap() = false;
    *host.storage.keeps.lock().unwrap() = false;
    assert_eq!(host.started().await.list().len(), 1);
}

#[tokio::test]
async fn a_device_that_has_the_number_of_one_that_went_away_is_not_removed_in_its_place() {
    let host = Host::new();
    let router = host.started().await;
    let number = router.create(create("a", MIB)).await.unwrap().info.device.unwrap().0;
    // Somebody removes the device of "a" behind the daemon's back (`ublk del`). The kernel gives the number to "b", because
    // another program's device has the number of "b".
    host.kernel.devices().remove(&number);
    host.kernel.foreign.lock().unwrap().insert(number + 1);
    let second = router.create(create("b", MIB)).await.unwrap().info;
    assert_eq!(second.device.unwrap().0, number);
    host.kernel.users.lock().unwrap().insert(number, "mounted on /mnt");
    // Operations on "a" leave the device of "b" alone.
    let grown = router.resize("a", size(2 * MIB)).await;
    assert!(matches!(grown, Err(RouterError::SizeNotTold { .. })), "{grown:?}");
    assert_eq!(router.detach("a", Users::Spare).await.unwrap().state, State::Detached);
    let device = host.kernel.devices().get(&number).cloned().unwrap();
    assert_eq!((device.export, device.size_bytes), (second.id, MIB));
    // Operations on "b" leave another program's device alone.
    host.kernel.devices().get_mut(&number).unwrap().export = ExportId(u32::MAX);
    assert!(router.delete("b", Users::Cut).await.unwrap());
    assert!(host.kernel.devices().contains_key(&number));
}
