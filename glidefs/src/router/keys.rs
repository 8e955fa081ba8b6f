//! Requests that are sent again: which idempotency keys were used, and for what.
//!
//! Owns the states of keys, in memory and in the catalog, their bounds, and their clock. Does not own keys as clients write them, nor
//! the work (`api`).
//!
//! ```text
//!            begun is on disk           done is on disk
//!  (free) ──► under way ──► the work ──► done ──► (free, after 24 hours or for the room)
//!    ▲                          │
//!    └───────── refused ────────┤
//!                               └── failed, cut off ──► unknown ──► (free, after 24 hours)
//! ```
//!
//! Invariants: a request is carried out under a key only when the catalog says so on disk, so after a crash the key is done or unknown;
//! under a key that is done, unknown or under way nothing is carried out; a key in memory that is not under way is in the catalog
//! as well, unless the disk failed when the answer was to be noted; memory and catalog change in the same order, as each change of
//! the catalog is queued under the lock of the table.

mod clock;
mod table;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

pub(super) use self::clock::{Clock, SystemClock};
use self::table::{KEEP_MILLIS, KeyLimits, Table, Verdict};
use super::catalog::LoadedRequest;
use super::catalog::error::CatalogError;
use super::catalog::request_record::{Fingerprint, KeptAnswer, RequestKey, RequestRecord, RequestState};
use super::catalog::requests::{QueuedRequest, RequestJournal};
use crate::locks::MutexExt;

/// Largest body of an answer that is kept, bytes.
pub const KEPT_BODY_BYTES_MAX: usize = 4 << 10;
/// The bounds on keys. The number alone decides which keys go: all of the largest answers take less than `bytes_max`.
const LIMITS: KeyLimits = KeyLimits { keys_max: 10_000, under_way_max: 1024, bytes_max: 64 << 20 };
/// Most keys that one change of the catalog removes at a start.
const REMOVED_AT_ONCE: usize = 1024;

/// The requests with an idempotency key, of all clients.
#[derive(Debug)]
pub struct Keys {
    journal: RequestJournal,
    clock: Box<dyn Clock>,
    boot_id: String,
    table: Mutex<Table>,
    /// Told when a request has ended.
    ended: Notify,
    /// Answers that could not be noted.
    unnoted: AtomicU64,
}

/// Whether a request is to be carried out.
#[derive(Debug)]
pub enum Admission {
    /// The request is to be carried out.
    Admitted(KeyUnderWay),
    /// The request was carried out before, with this answer.
    Done(Arc<KeptAnswer>),
    /// The request is under way.
    InUse,
    /// The key belongs to another request.
    Reused,
    /// Nobody knows whether the request was carried out.
    Unknown,
    /// There is no room for another key.
    Full,
}

/// How far an admitted request is.
#[derive(Debug)]
enum Phase {
    /// The begin is on its way to the disk, so nothing was done.
    Noting(QueuedRequest),
    /// The request is being carried out.
    UnderWay,
    /// The answer is on its way to the disk.
    Answered,
    /// The table has the end.
    Ended,
}

/// A request under way. Dropping without an end makes the outcome unknown, or frees the key where nothing was begun.
#[derive(Debug)]
pub struct KeyUnderWay {
    keys: Arc<Keys>,
    key: RequestKey,
    fingerprint: Fingerprint,
    phase: Phase,
}

impl Keys {
    /// The keys in a catalog, `loaded` from it at a start in the boot `boot_id`.
    pub(super) fn new(journal: RequestJournal, loaded: Vec<LoadedRequest>, boot_id: &str) -> Arc<Self> {
        Self::with(journal, loaded, boot_id, LIMITS, Box::new(SystemClock))
    }

    fn with(
        journal: RequestJournal,
        loaded: Vec<LoadedRequest>,
        boot_id: &str,
        limits: KeyLimits,
        clock: Box<dyn Clock>,
    ) -> Arc<Self> {
        let keys = Self {
            journal,
            boot_id: boot_id.into(),
            table: Mutex::new(Table::new(limits)),
            ended: Notify::new(),
            unnoted: AtomicU64::new(0),
            clock,
        };
        keys.load(loaded);
        Arc::new(keys)
    }

    /// Whether the request `fingerprint` with `key` is to be carried out.
    pub fn admit(self: &Arc<Self>, key: RequestKey, fingerprint: Fingerprint) -> Admission {
        let now = self.clock.boot_millis();
        let mut table = self.table();
        let (verdict, gone) = table.admit(key, fingerprint, now);
        if verdict != Verdict::Admitted {
            if !gone.is_empty() {
                // Keys that stay in the catalog because of an error come back with the next start, and go then.
                drop(self.journal.queue(None, gone));
            }
            drop(table);
            return match verdict {
                Verdict::Done(answer) => Admission::Done(answer),
                Verdict::InUse => Admission::InUse,
                Verdict::Reused => Admission::Reused,
                Verdict::Unknown => Admission::Unknown,
                Verdict::Admitted | Verdict::Full => Admission::Full,
            };
        }
        let begun = self.record(Some(fingerprint), now, RequestState::Begun);
        let queued = self.journal.queue(Some((key, begun)), gone);
        drop(table);
        let keys = Arc::clone(self);
        Admission::Admitted(KeyUnderWay { keys, key, fingerprint, phase: Phase::Noting(queued) })
    }

    /// Keys that are kept or under way.
    pub fn count(&self) -> usize {
        self.table().keys()
    }

    /// Requests under way, with a client that waits or without.
    pub fn under_way(&self) -> usize {
        self.table().under_way()
    }

    /// Memory of keys and answers, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.table().bytes()
    }

    /// Answers that could not be noted: after the next start nobody knows the outcome of these requests.
    pub fn unnoted(&self) -> u64 {
        self.unnoted.load(Ordering::Relaxed)
    }

    /// Returns when no request is under way.
    pub async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.under_way() == 0 {
                return;
            }
            ended.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock_whole()
    }

    fn record(&self, fingerprint: Option<Fingerprint>, now: u64, state: RequestState) -> RequestRecord {
        RequestRecord { fingerprint, since_boot_millis: now, boot_id: self.boot_id.clone(), state }
    }

    /// Takes over the requests from the catalog. What was begun has an unknown outcome from this start on, and so has what cannot be
    /// read.
    fn load(&self, mut loaded: Vec<LoadedRequest>) {
        let now = self.clock.boot_millis();
        // In the order of time, so that of the keys of one request the latest is known. Times of different boots cannot be compared.
        loaded.sort_by_cached_key(|(_, record)| record.as_ref().map_or(0, |record| record.since_boot_millis));
        let (mut unknown, mut damaged, mut gone) = (0_u64, 0_u64, Vec::new());
        let mut table = self.table();
        for (key, record) in loaded {
            let record = record.unwrap_or_else(|error| {
                if damaged == 0 {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(
                        error,
                        "the record of a request with an idempotency key is damaged, or of a newer version: the outcome counts as unknown"
                    );
                }
                damaged = damaged.saturating_add(1);
                self.record(None, now, RequestState::Begun)
            });
            let RequestRecord { fingerprint, since_boot_millis, boot_id, state } = record;
            // Nothing says how long a host was down: the time of day may have been set. A key of another boot counts anew.
            let is_of_this_boot = boot_id == self.boot_id;
            let age = if is_of_this_boot { now.saturating_sub(since_boot_millis) } else { 0 };
            let until = now.saturating_add(KEEP_MILLIS.saturating_sub(age));
            let rewritten = match state {
                RequestState::Begun => {
                    unknown = unknown.saturating_add(1);
                    table.insert_unknown(key, fingerprint, now.saturating_add(KEEP_MILLIS));
                    Some(RequestState::Unknown)
                }
                _ if until <= now => {
                    gone.push(key);
                    None
                }
                RequestState::Unknown => {
                    table.insert_unknown(key, fingerprint, until);
                    (!is_of_this_boot).then_some(RequestState::Unknown)
                }
                RequestState::Done(answer) => {
                    table.insert_done(key, fingerprint, answer.clone(), until);
                    (!is_of_this_boot).then_some(RequestState::Done(answer))
                }
            };
            if let Some(state) = rewritten {
                // A record that stays as it is because of an error is seen again by the next start.
                drop(self.journal.queue(Some((key, self.record(fingerprint, now, state))), Vec::new()));
            }
        }
        gone.extend(table.shrink());
        for some in gone.chunks(REMOVED_AT_ONCE) {
            drop(self.journal.queue(None, some.to_vec()));
        }
        drop(table);
        if unknown > 0 {
            tracing::warn!(
                requests = unknown,
                damaged,
                "requests with an idempotency key were cut off, or their records are damaged: they may or may not have been carried out"
            );
        }
    }
}

impl KeyUnderWay {
    /// Returns when the begin of the request is on disk, so that the request may be carried out.
    ///
    /// # Errors
    /// The error of the catalog. The key is free then.
    pub async fn begun(&mut self) -> Result<(), CatalogError> {
        let Phase::Noting(queued) = std::mem::replace(&mut self.phase, Phase::UnderWay) else {
            return Ok(());
        };
        // Dropped meanwhile, the key counts as cut off though nothing was done, which is safe.
        queued.written().await.inspect_err(|_| {
            // The catalog does not have the change.
            self.keys.table().free(self.key);
            self.end();
        })
    }

    /// Notes the answer of a request that was carried out. Returns when the answer is on disk, or cannot be noted.
    pub async fn done(mut self, answer: KeptAnswer) {
        let keys = Arc::clone(&self.keys);
        let now = keys.clock.boot_millis();
        let record = keys.record(Some(self.fingerprint), now, RequestState::Done(answer.clone()));
        let table = keys.table();
        let queued = keys.journal.queue(Some((self.key, record)), Vec::new());
        drop(table);
        self.phase = Phase::Answered;
        if let Err(error) = queued.written().await {
            keys.unnoted.fetch_add(1, Ordering::Relaxed);
            let error = &error as &dyn std::error::Error;
            tracing::error!(
                error,
                "a request with an idempotency key was carried out, and the answer could not be noted: after the next start the outcome \
                 counts as unknown"
            );
        }
        let mut table = keys.table();
        let gone = table.finish(self.key, answer, now);
        if !gone.is_empty() {
            drop(keys.journal.queue(None, gone));
        }
        drop(table);
        self.end();
    }

    /// Frees the key of a request that was refused or has failed. Returns when the key is free on disk as well, or the disk fails: then
    /// the outcome counts as unknown after the next start.
    pub async fn free(mut self) {
        let table = self.keys.table();
        let queued = self.keys.journal.queue(None, vec![self.key]);
        drop(table);
        // The catalog has logged the error. Until then the key is under way: the end of the daemon waits for the disk.
        let _: Result<(), CatalogError> = queued.written().await;
        self.keys.table().free(self.key);
        self.end();
    }

    /// Notes that nobody knows the outcome.
    fn lose(&self) {
        let now = self.keys.clock.boot_millis();
        let record = self.keys.record(Some(self.fingerprint), now, RequestState::Unknown);
        let mut table = self.keys.table();
        table.lose(self.key, now);
        // Until the change is on disk, and without it, a start finds the request begun, which comes to the same.
        drop(self.keys.journal.queue(Some((self.key, record)), Vec::new()));
    }

    fn let_go(&self) -> QueuedRequest {
        let mut table = self.keys.table();
        table.free(self.key);
        self.keys.journal.queue(None, vec![self.key])
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        self.keys.ended.notify_waiters();
    }
}

impl Drop for KeyUnderWay {
    fn drop(&mut self) {
        match &self.phase {
            Phase::Ended => return,
            Phase::Noting(_) => drop(self.let_go()),
            Phase::UnderWay => self.lose(),
            // The catalog gets the answer, which must not be replaced.
            Phase::Answered => self.keys.table().lose(self.key, self.keys.clock.boot_millis()),
        }
        self.end();
    }
}
