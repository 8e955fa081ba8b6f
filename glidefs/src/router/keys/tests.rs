//! Keys in a real catalog, under a clock that a test turns.

mod bounds;
mod model;

use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::*;
use crate::router::Catalog;

const HOUR: u64 = 60 * 60 * 1000;
const REQUESTS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("requests");

/// The clock of a test.
#[derive(Clone, Debug)]
struct Hands(Arc<AtomicU64>);

impl Clock for Hands {
    fn boot_millis(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

impl Hands {
    fn pass(&self, millis: u64) {
        self.0.fetch_add(millis, SeqCst);
    }
}

/// A host whose daemons come and go.
struct Kept {
    dir: tempfile::TempDir,
    hands: Hands,
    boot: u32,
    limits: KeyLimits,
    daemon: Option<(Catalog, Arc<Keys>)>,
}

impl Kept {
    fn new() -> Self {
        Self::with(LIMITS)
    }

    fn with(limits: KeyLimits) -> Self {
        let hands = Hands(Arc::new(5.into()));
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Self { dir, hands, boot: 1, limits, daemon: None };
        kept.restart();
        kept
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("catalog.redb")
    }

    /// Ends the daemon, as a kill does, and starts another one.
    fn restart(&mut self) {
        self.daemon = None;
        let mut catalog = Catalog::open(&self.path()).unwrap();
        let (journal, loaded) = (catalog.request_journal(), catalog.take_requests());
        let clock = Box::new(self.hands.clone());
        let keys = Keys::with(journal, loaded, &format!("boot-{}", self.boot), self.limits, clock);
        self.daemon = Some((catalog, keys));
    }

    /// As [`Self::restart`], with a boot of the kernel between.
    fn reboot(&mut self) {
        self.boot += 1;
        self.hands.0.store(7, SeqCst);
        self.restart();
    }

    fn keys(&self) -> &Arc<Keys> {
        &self.daemon.as_ref().unwrap().1
    }

    fn refuse(&self, refuses: bool) {
        self.daemon.as_ref().unwrap().0.refuse(refuses);
    }

    fn ask(&self, key: &str, body: &str) -> Admission {
        self.keys().admit(RequestKey::of(key), fingerprint(body))
    }

    fn says(&self, key: &str, body: &str) -> &'static str {
        match self.ask(key, body) {
            Admission::Admitted(_) => "admitted",
            Admission::Done(answer) if answer.body.as_deref() == Some(body) => "done",
            Admission::Done(answer) => panic!("{answer:?}"),
            Admission::InUse => "in use",
            Admission::Reused => "reused",
            Admission::Unknown => "unknown",
            Admission::Full => "full",
        }
    }

    async fn begin(&self, key: &str, body: &str) -> KeyUnderWay {
        let Admission::Admitted(mut under_way) = self.ask(key, body) else { panic!("{key} is not admitted") };
        under_way.begun().await.unwrap();
        under_way
    }

    async fn carry_out(&self, key: &str, body: &str) {
        self.begin(key, body).await.done(answer(body)).await;
    }

    /// Changes the record of `key` on the disk while no daemon runs.
    fn tamper(&mut self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        self.daemon = None;
        let database = Database::open(self.path()).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut table = transaction.open_table(REQUESTS).unwrap();
            let hash = *blake3::hash(key.as_bytes()).as_bytes();
            let mut bytes = table.get(&hash).unwrap().unwrap().value().to_vec();
            change(&mut bytes);
            table.insert(&hash, bytes.as_slice()).unwrap();
        }
        transaction.commit().unwrap();
        drop(database);
        self.restart();
    }

    /// Ends the daemon, and counts the records on the disk.
    fn records(&mut self) -> usize {
        self.daemon = None;
        let database = Database::open(self.path()).unwrap();
        let records = {
            let transaction = database.begin_read().unwrap();
            redb::ReadableTableMetadata::len(&transaction.open_table(REQUESTS).unwrap()).unwrap()
        };
        drop(database);
        self.restart();
        usize::try_from(records).unwrap()
    }
}

fn fingerprint(body: &str) -> Fingerprint {
    Fingerprint::of(&[body.as_bytes()])
}

fn answer(body: &str) -> KeptAnswer {
    KeptAnswer { status: 200, headers: Vec::new(), body: Some(body.into()) }
}

#[tokio::test]
async fn a_request_is_carried_out_once_and_its_answer_survives_restarts() {
    let mut kept = Kept::new();
    let under_way = kept.begin("k", "b").await;
    assert_eq!(kept.says("k", "b"), "in use");
    assert_eq!(kept.says("k", "other"), "reused");
    under_way.done(answer("b")).await;
    for _ in 0..3 {
        assert_eq!(kept.says("k", "b"), "done");
        assert_eq!(kept.says("k", "other"), "reused");
        kept.restart();
    }
    assert_eq!(kept.keys().count(), 1);
}

#[tokio::test]
async fn a_crash_between_begin_and_end_leaves_an_unknown_outcome_for_a_day_from_the_next_start() {
    let mut kept = Kept::new();
    let under_way = kept.begin("k", "b").await;
    // The process is killed: nothing runs any more, and no destructor either.
    std::mem::forget(under_way);
    // The request was under way for long, and the host was off for long.
    kept.hands.pass(100 * HOUR);
    kept.reboot();
    for _ in 0..4 {
        assert_eq!(kept.says("k", "b"), "unknown");
        assert_eq!(kept.says("k", "other"), "reused");
        kept.hands.pass(5 * HOUR);
        kept.restart();
    }
    kept.hands.pass(5 * HOUR);
    assert_eq!(kept.says("k", "b"), "admitted");
}

#[tokio::test]
async fn a_request_that_is_cut_off_in_a_daemon_that_goes_on_has_an_unknown_outcome_too() {
    let kept = Kept::new();
    drop(kept.begin("k", "b").await);
    assert_eq!(kept.says("k", "b"), "unknown");
    let Admission::Admitted(not_begun) = kept.ask("l", "b") else { panic!() };
    drop(not_begun);
    assert_eq!(kept.says("l", "b"), "admitted", "nothing was done");
}

#[tokio::test]
async fn a_refusal_frees_the_key_also_for_another_request_and_on_disk() {
    let mut kept = Kept::new();
    kept.begin("k", "b").await.free().await;
    kept.restart();
    assert_eq!(kept.says("k", "other"), "admitted");
    assert_eq!(kept.records(), 0);
}

#[tokio::test]
async fn nothing_is_carried_out_where_the_begin_cannot_be_noted() {
    let mut kept = Kept::new();
    kept.refuse(true);
    let Admission::Admitted(mut under_way) = kept.ask("k", "b") else { panic!() };
    assert!(under_way.begun().await.unwrap_err().to_string().contains("make room"));
    drop(under_way);
    kept.refuse(false);
    assert_eq!(kept.keys().under_way(), 0);
    assert_eq!(kept.says("k", "other"), "admitted", "the key is free");
    assert_eq!(kept.records(), 0);
}

#[tokio::test]
async fn an_answer_that_cannot_be_noted_is_sent_again_until_the_next_start_and_unknown_then() {
    let mut kept = Kept::new();
    let under_way = kept.begin("k", "b").await;
    kept.refuse(true);
    under_way.done(answer("b")).await;
    assert_eq!(kept.keys().unnoted(), 1);
    assert_eq!(kept.says("k", "b"), "done");
    kept.restart();
    assert_eq!(kept.says("k", "b"), "unknown");
}

#[tokio::test]
async fn a_damaged_record_stands_for_an_unknown_outcome_of_every_request_and_never_for_a_free_key() {
    let damages: [fn(&mut Vec<u8>); 3] =
        [|bytes| bytes[9] ^= 1, |bytes| bytes.truncate(3), |bytes| bytes[0] = 2];
    for damage in damages {
        let mut kept = Kept::new();
        kept.carry_out("k", "b").await;
        kept.carry_out("l", "c").await;
        kept.tamper("k", damage);
        for _ in 0..2 {
            assert_eq!((kept.says("k", "b"), kept.says("k", "other")), ("unknown", "unknown"));
            assert_eq!(kept.says("l", "c"), "done", "other keys have nothing to do with it");
            kept.hands.pass(11 * HOUR);
            kept.restart();
        }
        kept.hands.pass(2 * HOUR);
        assert_eq!(kept.says("k", "b"), "admitted", "not for ever");
    }
}

#[tokio::test]
async fn a_key_is_kept_for_a_day_from_the_end_of_its_request() {
    let mut kept = Kept::new();
    let under_way = kept.begin("k", "b").await;
    kept.hands.pass(30 * HOUR);
    assert_eq!(kept.says("k", "b"), "in use");
    under_way.done(answer("b")).await;
    kept.hands.pass(23 * HOUR);
    kept.restart();
    assert_eq!(kept.says("k", "b"), "done");
    kept.hands.pass(HOUR);
    assert_eq!(kept.says("l", "c"), "admitted");
    assert_eq!(kept.records(), 0, "the old key has left the disk, and the new one was never begun");
}

#[tokio::test]
async fn a_key_of_another_boot_is_kept_for_a_day_from_the_first_start_of_this_boot() {
    let mut kept = Kept::new();
    kept.carry_out("k", "b").await;
    drop(kept.begin("l", "c").await);
    kept.hands.pass(23 * HOUR);
    kept.reboot();
    kept.hands.pass(23 * HOUR);
    kept.restart();
    assert_eq!((kept.says("k", "b"), kept.says("l", "c")), ("done", "unknown"));
    kept.hands.pass(HOUR);
    assert_eq!((kept.says("k", "b"), kept.says("l", "c")), ("admitted", "admitted"));
}

#[tokio::test]
async fn the_end_of_a_daemon_can_wait_until_no_request_is_under_way() {
    let kept = Kept::new();
    kept.keys().idle().await;
    let (first, second) = (kept.begin("k", "b").await, kept.begin("l", "b").await);
    let keys = Arc::clone(kept.keys());
    let idle = tokio::spawn(async move { keys.idle().await });
    first.done(answer("b")).await;
    tokio::task::yield_now().await;
    assert!(!idle.is_finished());
    drop(second);
    idle.await.unwrap();
}

#[tokio::test]
async fn a_daemon_that_ends_while_an_answer_is_noted_does_not_lose_the_answer() {
    use futures_util::FutureExt;
    let mut kept = Kept::new();
    let under_way = kept.begin("k", "b").await;
    // The change is queued, and the task is dropped before the disk has answered or after.
    let _ = under_way.done(answer("b")).now_or_never();
    kept.restart();
    assert_eq!(kept.says("k", "b"), "done");
}
