//! The object store: reachability and credentials, conditional creation, latency, the clock.
//!
//! Owns the judgement. Does not own requests nor the trial (`store`).

use std::time::Duration;

use uuid::Uuid;

use super::finding::Finding;
use crate::store::Trial;

/// A request that takes longer than this is worth a note.
const LATENCY_NOTED: Duration = Duration::from_millis(250);
/// A request that takes longer than this keeps data at risk for long.
const LATENCY_SLOW: Duration = Duration::from_secs(1);
/// A clock that is wrong by more than this is worth a warning.
const SKEW_WARNED_MILLIS: u64 = 5_000;
/// A clock that is wrong by more than this makes stores refuse requests.
const SKEW_REFUSED_MILLIS: u64 = 15 * 60 * 1000;

/// The store of the configuration.
#[derive(Debug)]
pub(super) enum StoreFacts {
    /// The configuration was refused, so no store is known.
    Unknown,
    /// `[store] url` is not set.
    NotSet,
    /// The store is in the memory of the daemon.
    Memory,
    /// This command has not the rights of the daemon.
    Forbidden,
    /// The place cannot be set up: the sentence of the error. With `is_made`, the first start makes the directory.
    Unusable {
        error: String,
        is_made: bool,
        variables: VariablesOf,
    },
    Asked(Box<Answers>),
}

/// Whose environment variables the store was reached with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariablesOf {
    Daemon,
    Command,
    /// The store is a directory, and needs no variables.
    Nobody,
}

impl VariablesOf {
    /// `found`, with the owner of the variables.
    fn found(self, found: &str) -> String {
        match self {
            Self::Daemon => format!("{found} (variables of the daemon)"),
            Self::Command => format!("{found} (variables of this command)"),
            Self::Nobody => found.to_owned(),
        }
    }

    /// `mend`, after a try with the variables of the service where others were used.
    fn mend(self, mend: &str) -> String {
        match self {
            Self::Command => {
                format!(
                    "once more with the service's variables (set -a; . /etc/default/glidefs; glidefs doctor); then {mend}"
                )
            }
            Self::Daemon | Self::Nobody => mend.to_owned(),
        }
    }
}

/// The answers of a place.
#[derive(Debug)]
pub(super) struct Answers {
    pub location: String,
    pub variables: VariablesOf,
    pub marker: Marker,
    /// `None` when the marker could not be asked for, so nothing was tried.
    pub trial: Option<Result<Trial, Trouble>>,
    /// Whether the cache has a catalog: the daemon has started before.
    pub has_started: bool,
    /// Whether the directory of the store is on the file system of the cache.
    pub shares_disk: bool,
}

/// The answer of the place to a question for the marker.
#[derive(Debug)]
pub(super) enum Marker {
    Store(Uuid),
    Nothing,
    Trouble(Trouble),
}

/// The sentence why a place has not done what was asked.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The store does not permit the request.
    Refused {
        text: String,
        /// The next step, by the cause of the refusal.
        advice: &'static str,
    },
    Unreachable(String),
    /// Something that no glidefs, or not this one, can use.
    Unfit(String),
}

impl StoreFacts {
    /// The identity of the store at the place.
    pub fn found(&self) -> Option<Uuid> {
        match self {
            Self::Asked(answers) => match answers.marker {
                Marker::Store(id) => Some(id),
                _ => None,
            },
            _ => None,
        }
    }
}

/// All findings about the store.
pub(super) fn check(facts: &StoreFacts) -> Vec<Finding> {
    match facts {
        StoreFacts::Asked(answers) => asked(answers),
        _ => vec![store(facts)],
    }
}

/// The finding about a store that was not asked.
fn store(facts: &StoreFacts) -> Finding {
    const CHECK: &str = "store";
    match facts {
        StoreFacts::Memory => Finding::warning(
            CHECK,
            "memory://",
            "the store is gone when the daemon ends, and data that the cache has left to the store is lost",
            "set [store] url to s3://bucket/prefix or file:///directory",
        ),
        StoreFacts::Unusable { error, is_made: true, .. } => Finding::note(
            CHECK,
            error,
            "the first start of the daemon makes the directory, also where a file system is only not mounted yet",
            "mount the file system of the store, if it has one of its own",
        ),
        StoreFacts::Unusable { error, variables, .. } => Finding::failure(
            CHECK,
            variables.found(error),
            "nothing is written back, and devices wait at the start until the store confirms the exports",
            variables.mend(
                "correct [store] url or the settings that the error names, or mount the file system of the store",
            ),
        ),
        StoreFacts::Forbidden => Finding::note(
            CHECK,
            "not asked",
            "only root has the variables and the rights of the daemon",
            "sudo glidefs doctor",
        ),
        StoreFacts::Unknown => {
            Finding::note(CHECK, "not asked", "the configuration was refused", "see configuration")
        }
        StoreFacts::NotSet | StoreFacts::Asked(_) => Finding::note(
            CHECK,
            "not set",
            "all data of exports is on this host only, and is lost with the disk of the cache",
            "set [store] url, for example s3://bucket/prefix",
        ),
    }
}

fn asked(answers: &Answers) -> Vec<Finding> {
    let mut findings = vec![marker(answers)];
    if answers.shares_disk {
        findings.push(Finding::note(
            "store disk",
            "the store is on the file system of the cache",
            "a fault of the disk takes the cache and the store together",
            "set [store] url to a place on another disk",
        ));
    }
    match &answers.trial {
        None => {}
        Some(Err(error)) => findings.push(trouble("store writes", error, answers.variables)),
        Some(Ok(trial)) => {
            findings.extend([writes(trial), condition(trial), latency(trial), clock(trial)]);
        }
    }
    findings
}

fn marker(answers: &Answers) -> Finding {
    const CHECK: &str = "store";
    let location = &answers.location;
    match &answers.marker {
        Marker::Store(_) => Finding::ok(CHECK, answers.variables.found(location)),
        Marker::Nothing if answers.has_started => Finding::warning(
            CHECK,
            format!("{location} has no glidefs store"),
            "a daemon that has exports in a store waits for that store; a daemon without makes a new store, unless volumes are there",
            "check [store] url, whether the file system of the store is mounted, and whether only its marker (glidefs.json) is gone",
        ),
        Marker::Nothing => Finding::note(
            CHECK,
            format!("{location} has no glidefs store"),
            "the first start of the daemon makes the place a store",
            "nothing, unless exports are there already: then correct [store] url",
        ),
        Marker::Trouble(error) => trouble(CHECK, error, answers.variables),
    }
}

fn trouble(check: &'static str, trouble: &Trouble, variables: VariablesOf) -> Finding {
    let (text, why, mend) = match trouble {
        Trouble::Refused { text, advice } => (
            text,
            "the store answers and refuses: nothing is written back, and devices wait at the start",
            format!("{advice}; glidefs gets, puts, lists and deletes objects below the prefix of [store] url"),
        ),
        Trouble::Unreachable(text) => (
            text,
            "nothing is written back, and READs of data that is only in the store wait",
            "check the network, the name of the server, proxies, firewalls and AWS_ENDPOINT_URL; of a directory, the file system"
                .into(),
        ),
        Trouble::Unfit(text) => (
            text,
            "a daemon with exports serves what its cache has, and sends nothing to this store; one without exports does not start",
            "set [store] url to another prefix, or run the version of glidefs that made the store; where its marker (glidefs.json) is \
             damaged, restart a daemon with exports in this store: its log then has the line to write there"
                .into(),
        ),
    };
    Finding::failure(check, variables.found(text), why, variables.mend(&mend))
}

fn writes(trial: &Trial) -> Finding {
    const CHECK: &str = "store writes";
    match &trial.removed {
        Ok(()) => Finding::ok(CHECK, "objects can be made, read and removed"),
        Err(error) => Finding::warning(
            CHECK,
            crate::observe::chain(error),
            "without the permission to delete, garbage collection frees nothing and the store grows for ever",
            "permit to delete objects below the prefix of [store] url; and remove the objects glidefs-doctor-*.tmp there",
        ),
    }
}

fn condition(trial: &Trial) -> Finding {
    const CHECK: &str = "store conditional PUT";
    const WHY: &str = "two hosts could overwrite each other's volumes, and acknowledged data would be lost";
    const MEND: &str = "use a server with conditional creation: Amazon S3, Google Cloud Storage, Azure Blob Storage, Cloudflare R2, \
                        current MinIO or Ceph; or a directory (file://)";
    if trial.replaces {
        let found = "an object was replaced that was to be created only if absent (If-None-Match)";
        return Finding::failure(CHECK, found, WHY, MEND);
    }
    if trial.winners > 1 {
        let found =
            format!("{} of the creators of one object at once were told that it is theirs", trial.winners);
        return Finding::failure(CHECK, found, WHY, MEND);
    }
    Finding::ok(CHECK, "refused, also in a race")
}

fn latency(trial: &Trial) -> Finding {
    const CHECK: &str = "store latency";
    let found = format!("GET {} ms, PUT {} ms", trial.get.as_millis(), trial.put.as_millis());
    let why = "READs of data that is only in the store, and FLUSHes with durability store, wait for as long";
    let mend = "use a store nearer to the host, or find out what is slow on the way (proxy, name service, the server)";
    let slower = trial.get.max(trial.put);
    if slower > LATENCY_SLOW {
        return Finding::warning(CHECK, found, why, mend);
    }
    if slower > LATENCY_NOTED {
        return Finding::note(CHECK, found, why, mend);
    }
    Finding::ok(CHECK, found)
}

fn clock(trial: &Trial) -> Finding {
    const CHECK: &str = "store clock";
    let skew = trial.clock_ahead_millis.unsigned_abs();
    let side = if trial.clock_ahead_millis > 0 { "ahead of" } else { "behind" };
    let found = format!("{} s {side} this host's", skew / 1000);
    let mend = "set the clock of this host: timedatectl set-ntp true, or install chrony";
    if skew > SKEW_REFUSED_MILLIS {
        let why =
            "a store refuses requests whose time is a quarter of an hour off: then nothing is written back";
        return Finding::failure(CHECK, found, why, mend);
    }
    if skew > SKEW_WARNED_MILLIS {
        let why = "from a quarter of an hour on, a store refuses requests";
        return Finding::warning(CHECK, found, why, mend);
    }
    Finding::ok(CHECK, "as this host's")
}

#[cfg(test)]
mod tests;
