//! Exports that the daemon has died of.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use super::fake::{Host, create, drop_last};
use crate::router::deaths::Deaths;
use crate::router::{Router, RouterError, State, Users};
use crate::tasks;
use crate::units::ExportId;

const DIED: &str = "panicked at index.rs:1:2: a bug";

/// A host with the exports e0 to e2 whose daemon has died so often while it worked for e1.
async fn died_of_e1(times: usize) -> Host {
    let mut host = Host::new();
    let router = host.started().await;
    for name in ["e0", "e1", "e2"] {
        router.create(create(name, 1 << 20)).await.unwrap();
    }
    let id = router.show("e1").unwrap().id;
    drop_last(router);
    for _ in 0..times {
        host.kernel.daemon_died();
        dies(&Deaths::read(host.directory()), id);
    }
    host.options.deaths = Arc::new(Deaths::read(host.directory()));
    host
}

fn dies(deaths: &Deaths, of: ExportId) {
    let _work = tasks::work_for(Some(of));
    deaths.note(DIED);
}

fn file(host: &Host) -> String {
    fs::read_to_string(host.directory().join("deaths")).unwrap_or_default()
}

/// Starts the next daemon.
async fn restarted(host: &mut Host, router: Arc<Router>) -> Arc<Router> {
    drop_last(router);
    host.kernel.daemon_died();
    host.options.deaths = Arc::new(Deaths::read(host.directory()));
    host.started().await
}

fn states(router: &Router) -> [State; 3] {
    ["e0", "e1", "e2"].map(|name| router.show(name).unwrap().state)
}

#[tokio::test]
async fn an_export_that_the_daemon_died_of_twice_is_left_alone_and_the_others_are_served() {
    let host = died_of_e1(2).await;
    let router = host.router();
    let report = router.start().await;
    assert_eq!((report.failed, report.recovered), (1, 2));
    let [e0, e1, e2] = states(&router);
    assert_eq!((e0, e2), (State::Serving, State::Serving));
    let reason = e1.reason().unwrap();
    assert!(reason.contains(DIED) && reason.contains("glidefs export attach e1"), "{reason}");
    assert_eq!(router.held_back(), ["e1"]);
    assert!(host.kernel.devices()[&1].quiesced, "the device stays, with its requests");
    host.kernel.take_log();
    tokio::time::pause();
    tokio::time::sleep(Duration::from_hours(1)).await;
    router.confirm().await;
    assert!(host.kernel.take_log().is_empty(), "it is not tried again");
    let refused = router.attach("e1", true).await.unwrap_err();
    assert!(
        matches!(refused, RouterError::HeldBack { .. }),
        "who only wants it served does not try again: {refused}"
    );
    assert!(router.create(create("e1", 1 << 20)).await.is_err());
    router.end_hold("e1").await;
    assert_eq!(router.attach("e1", true).await.unwrap().state, State::Serving);
    assert!(router.held_back().is_empty());
}

#[tokio::test]
async fn an_export_that_was_attached_again_is_held_back_by_another_death_only() {
    let mut host = died_of_e1(2).await;
    let router = host.started().await;
    router.end_hold("e1").await;
    router.attach("e1", true).await.unwrap();
    let router = restarted(&mut host, router).await;
    assert_eq!(
        states(&router),
        [State::Serving, State::Serving, State::Serving],
        "no daemon died of it again"
    );
    router.detach("e1", Users::Spare).await.unwrap();
    tokio::time::pause();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(file(&host).lines().count(), 1, "it was not served for a minute");
    router.attach("e1", true).await.unwrap();
    tokio::time::sleep(Duration::from_mins(2)).await;
    tokio::time::resume();
    while !file(&host).is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let router = restarted(&mut host, router).await;
    assert_eq!(states(&router), [State::Serving, State::Serving, State::Serving]);
}

#[tokio::test]
async fn an_export_that_the_daemon_died_of_once_is_served() {
    let host = died_of_e1(1).await;
    let router = host.started().await;
    assert_eq!(states(&router), [State::Serving, State::Serving, State::Serving]);
}

#[tokio::test]
async fn a_deleted_export_that_was_held_back_is_gone() {
    let host = died_of_e1(2).await;
    let router = host.started().await;
    router.delete("e1", Users::Spare).await.unwrap();
    assert!(router.show("e1").is_err() && !host.kernel.devices().contains_key(&1));
}

#[test]
fn a_panic_counts_in_work_for_an_export_and_once_a_process() {
    let directory = tempfile::tempdir().unwrap();
    let deaths = Deaths::read(directory.path());
    deaths.note("no work for an export");
    assert!(!directory.path().join("deaths").exists());
    dies(&deaths, ExportId(1));
    dies(&deaths, ExportId(1));
    let next = Deaths::read(directory.path());
    assert!(next.knows(ExportId(1)) && next.holds_back(ExportId(1)).is_none());
}

#[test]
fn a_file_that_is_torn_or_foreign_or_too_long_holds_back_what_its_whole_lines_say() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deaths");
    fs::write(&path, b"7 once\n\xff\xfe\0\nx y\n7 twice\n\n8 once\n8 torn").unwrap();
    let deaths = Deaths::read(directory.path());
    assert_eq!(deaths.holds_back(ExportId(7)).as_deref(), Some("twice"));
    assert_eq!((deaths.holds_back(ExportId(8)), deaths.knows(ExportId(8))), (None, true));
    dies(&deaths, ExportId(8));
    assert!(Deaths::read(directory.path()).holds_back(ExportId(8)).is_some(), "a line follows a whole line");
    fs::write(&path, "9 often\n".repeat(1000) + &"7 once\n".repeat(64)).unwrap();
    let deaths = Deaths::read(directory.path());
    assert_eq!((deaths.knows(ExportId(9)), deaths.knows(ExportId(7))), (false, true), "the newest count");
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 64);
}

#[test]
fn a_file_that_cannot_be_read_or_written_holds_nothing_back() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("deaths")).unwrap();
    let deaths = Deaths::read(directory.path());
    dies(&deaths, ExportId(1));
    dies(&deaths, ExportId(1));
    deaths.forget(ExportId(1), 0);
    assert!(deaths.holds_back(ExportId(1)).is_none());
}

#[test]
fn a_reason_is_one_short_line() {
    let directory = tempfile::tempdir().unwrap();
    let _work = tasks::work_for(Some(ExportId(3)));
    for _ in 0..2 {
        Deaths::read(directory.path()).note(&format!("at a.rs:1:\n\x1b[31m{}", "é".repeat(1000)));
    }
    let reason = Deaths::read(directory.path()).holds_back(ExportId(3)).unwrap();
    assert!(reason.starts_with("at a.rs:1: [31mé") && reason.chars().count() == 300, "{reason}");
}
