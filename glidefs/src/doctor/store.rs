//! The object store: reachability and credentials, conditional creation, latency, the clock.
//!
//! Does not own requests nor the trial (`store`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use uuid::Uuid;

use super::daemon::Host;
use super::{Finding, Verdict, answer, failure, finding, for_root, note, ok, warning};
use crate::observe::chain;
use crate::store::{
    Access, Backend, RetryPolicy, Store, StoreError, StoreOptions, StoreUrl, Trial, TrialSize, Variables,
    process_variables,
};

/// How long one try of a request may take, and all tries of a request.
const TRY_PATIENCE: Duration = Duration::from_secs(5);
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// A request that takes longer than this is worth a note.
const LATENCY_NOTED: Duration = Duration::from_millis(250);
/// A request that takes longer than this keeps data at risk for long.
const LATENCY_SLOW: Duration = Duration::from_secs(1);
/// A clock that is wrong by more than this is worth a warning.
const SKEW_WARNED_MILLIS: u64 = 5_000;
/// A clock that is wrong by more than this makes stores refuse requests.
const SKEW_REFUSED_MILLIS: u64 = 15 * 60 * 1000;

/// Promises of the README, each with the checks on which it rests.
const PROMISES: [(&str, &[&str]); 5] = [
    (
        "FLUSH survives the loss of the host, with --durability store",
        &["store writes", "store conditional PUT"],
    ),
    ("one writer: an export that another host took over stops", &["store conditional PUT", "store listing"]),
    ("READ: the newest acknowledged bytes, or an error", &["store conditional PUT", "store reads"]),
    ("an export opens on another host", &["store listing", "store reads"]),
    (
        "what was deleted or overwritten takes no space for ever",
        &["store writes", "store listing", "store versions"],
    ),
];

/// Whether the store of `findings` allows the promises of the README.
pub(super) fn promises(findings: &[Finding]) -> Vec<Finding> {
    let of =
        |check: &&str| findings.iter().find(|finding| finding.check == *check).map(|found| found.verdict);
    let judge = |&(promise, checks): &(&str, &[&str])| {
        let worst = checks.iter().map(of).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        match worst {
            None => note(format!("not known: {promise}")).why("the store was not tried").mend("see store"),
            Some(Verdict::Ok | Verdict::Note) => ok(format!("holds: {promise}")),
            Some(worst) => finding(worst, format!("broken: {promise}"))
                .why(format!("it rests on {}", checks.join(", ")))
                .mend("see these"),
        }
    };
    PROMISES.iter().map(|row| judge(row).named("promise")).collect()
}

/// All findings about the store, by a trial of `size`, and its identity. The environment is that of the daemon where that can be read.
pub(super) async fn check(host: &Host, size: TrialSize) -> (Vec<Finding>, Option<Uuid>) {
    let of_daemon = host.daemon.as_ref().and_then(|daemon| daemon.variables.clone());
    let (url, finding) = match &host.config.store.url {
        _ if host.refused.is_some() => {
            (None, note("not asked").why("the configuration was refused").mend("see configuration"))
        }
        None => (
            None,
            note("not set")
                .why("all data of exports is on this host only, and is lost with the disk of the cache")
                .mend("set [store] url, for example s3://bucket/prefix"),
        ),
        Some(StoreUrl::Memory) => (
            None,
            warning("memory://")
                .why("the store is gone when the daemon ends, and data that the cache has left to the store is lost")
                .mend("set [store] url to s3://bucket/prefix or file:///directory"),
        ),
        // Credentials and directories are the daemon's, and others than root have neither.
        Some(_) if !host.is_root => (None, for_root("not asked")),
        Some(url) => (Some(url), ok("")),
    };
    let Some(url) = url else { return (vec![finding.named("store")], None) };
    let whose = match (&of_daemon, url) {
        (_, StoreUrl::File(_)) => Whose { suffix: "", first: "" },
        (Some(_), _) => Whose { suffix: " (variables of the daemon)", first: "" },
        (None, _) => Whose {
            suffix: " (variables of this command)",
            first: "once more with the service's variables (set -a; . /etc/default/glidefs; glidefs doctor); then ",
        },
    };
    ask(url, &host.config.cache.dir, of_daemon.unwrap_or_else(process_variables), whose, size).await
}

/// Whose environment variables the store was reached with.
#[derive(Clone, Copy)]
struct Whose {
    /// Added to what was found.
    suffix: &'static str,
    /// The step before the remedy.
    first: &'static str,
}

impl Whose {
    fn failure(self, found: &str, why: &str, mend: &str) -> Finding {
        failure(format!("{found}{}", self.suffix)).why(why).mend(format!("{}{mend}", self.first))
    }
}

async fn ask(
    url: &StoreUrl,
    cache: &Path,
    variables: Variables,
    whose: Whose,
    size: TrialSize,
) -> (Vec<Finding>, Option<Uuid>) {
    let keeps_all_versions = matches!(url, StoreUrl::Gcs(_));
    let (url, cache) = (url.clone(), cache.to_owned());
    let set_up = answer(move || {
        let has_started = cache.join("catalog.redb").exists();
        let directory = match &url {
            StoreUrl::File(path) => Some(path.as_path()),
            _ => None,
        };
        let shares_disk = directory.map_or(Disks::Apart, |path| disks(path, &cache));
        let is_made = !has_started && directory.is_some_and(|path| !path.exists());
        let backend = Backend::connect(&url, &variables, false).map_err(|error| chain(&error));
        (backend, has_started, shares_disk, is_made)
    });
    let (backend, has_started, shares_disk, is_made) =
        set_up.await.unwrap_or_else(|silence| (Err(silence), true, Disks::Apart, false));
    let backend = match backend {
        Ok(backend) => backend,
        Err(error) if is_made => {
            let finding = note(error)
                .why("the first start of the daemon makes the directory, also where a file system is only not mounted yet")
                .mend("mount the file system of the store, if it has one of its own");
            return (vec![finding.named("store")], None);
        }
        Err(error) => {
            let finding = whose.failure(
                &error,
                "nothing is written back, and devices wait at the start until the store confirms the exports",
                "correct [store] url or the settings that the error names, or mount the file system of the store",
            );
            return (vec![finding.named("store")], None);
        }
    };
    let retry =
        RetryPolicy { idle_time_max: TRY_PATIENCE, time_budget: REQUEST_PATIENCE, ..RetryPolicy::default() };
    let store = Store::over(backend, StoreOptions { retry, ..StoreOptions::default() });
    let (finding, store_id) = match store.check(Access::ReadOnly).await {
        Ok(marker) => (ok(format!("{}{}", store.location(), whose.suffix)), Some(marker.store_id)),
        Err(StoreError::NotAStore { .. }) => match store.foreign().await {
            Ok(Some(found)) if !has_started => (occupied(store.location(), &found), None),
            _ => (no_store(store.location(), has_started), None),
        },
        Err(error) => return (vec![trouble(&error, whose).named("store")], None),
    };
    let mut findings = vec![finding.named("store")];
    let place = match shares_disk {
        Disks::Apart => None,
        Disks::One => Some(note("the store is on the file system of the cache")),
        Disks::Nested => Some(failure("of the store's directory and the cache's, one is in the other")),
    };
    findings.extend(place.map(|finding| {
        finding
            .why("a fault of the disk, or of a hand, takes the cache and the store together")
            .mend("set [store] url to a place on another disk")
            .named("store disk")
    }));
    match store.try_out(size).await {
        Ok(trial) => findings.extend(judge(&trial, size, keeps_all_versions)),
        Err(error) => findings.push(trouble(&error, whose).named("store writes")),
    }
    (findings, store_id)
}

/// Where the directory of a store is, beside that of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disks {
    Apart,
    One,
    Nested,
}

fn disks(store: &Path, cache: &Path) -> Disks {
    let number = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    match (store.canonicalize(), cache.canonicalize()) {
        (Ok(store), Ok(cache)) if store.starts_with(&cache) || cache.starts_with(&store) => Disks::Nested,
        (Ok(store), Ok(cache)) if number(&store) == number(&cache) => Disks::One,
        _ => Disks::Apart,
    }
}

fn occupied(location: &str, found: &str) -> Finding {
    failure(format!("{location} has no glidefs store, and has {found}"))
        .why("the first start of the daemon makes no store among other objects")
        .mend("set [store] url to a prefix or directory of its own, which is empty")
}

fn no_store(location: &str, has_started: bool) -> Finding {
    let found = format!("{location} has no glidefs store");
    if has_started {
        return warning(found)
            .why("a daemon that has exports in a store waits for that store; a daemon without makes a new store, unless volumes are there")
            .mend("check [store] url, whether the file system of the store is mounted, and whether only its marker (glidefs.json) is gone");
    }
    note(found)
        .why("the first start of the daemon makes the place a store")
        .mend("nothing, unless exports are there already: then correct [store] url")
}

/// Why the place has not done what was asked.
fn trouble(error: &StoreError, whose: Whose) -> Finding {
    let text = chain(error);
    match error {
        StoreError::Refused { advice, .. } => whose.failure(
            &text,
            "the store answers and refuses: nothing is written back, and devices wait at the start",
            &format!("{advice}; glidefs gets, puts, lists and deletes objects below the prefix of [store] url"),
        ),
        error if error.is_transient() => whose.failure(
            &text,
            "nothing is written back, and READs of data that is only in the store wait",
            "check the network, the name of the server, proxies, firewalls and AWS_ENDPOINT_URL; of a directory, the file system",
        ),
        _ => whose.failure(
            &text,
            "the daemon serves what its cache has, and sends nothing to this store",
            "set [store] url to another prefix, or run the version of glidefs that made the store; where its marker (glidefs.json) is \
             damaged, restart a daemon with exports in this store: its log then has the line to write there",
        ),
    }
}

fn judge(trial: &Trial, size: TrialSize, has_generations: bool) -> Vec<Finding> {
    let mut findings = vec![
        writes(trial).named("store writes"),
        condition(trial).named("store conditional PUT"),
        reads(trial).named("store reads"),
        listing(trial.listing.as_deref()).named("store listing"),
        versions(trial.keeps_versions && !has_generations).named("store versions"),
        latency(trial.get, trial.put).named("store latency"),
        clock(trial.clock_ahead_millis).named("store clock"),
    ];
    findings.extend(trial.transfer.map(|(put, get)| {
        let rate = |time: Duration| ((size.body_bytes as u128) * 1000 / time.as_millis().max(1)) >> 20;
        ok(format!("{} MiB/s to the store, {} MiB/s from it, by one request", rate(put), rate(get)))
            .named("store throughput")
    }));
    findings
}

fn reads(trial: &Trial) -> Finding {
    if let Some(why) = &trial.missing {
        return failure(format!("an object that is missing: {why}"))
            .why("glidefs asks for objects that may not be there, and cannot tell a free name from a lost permission")
            .mend("permit to list the bucket (for S3 s3:ListBucket, for the bucket and not for its objects)");
    }
    let Some(why) = &trial.ranges else { return ok("missing objects are told, and parts read alone") };
    failure(format!("a part of an object: {why}"))
        .why("READs fetch parts of packs")
        .mend("use a server, and proxies before it, that know the header Range")
}

fn listing(lacks: Option<&str>) -> Finding {
    let Some(why) = lacks else { return ok("has what was made just before") };
    failure(format!("a listing of what was made just before: {why}"))
        .why("the newest state of a volume, and what may be removed, is found by listings")
        .mend("permit to list the bucket (for S3 s3:ListBucket), or use a server with listings that are complete, in order and current")
}

fn versions(are_kept: bool) -> Finding {
    if !are_kept {
        return ok("none are kept of what is removed");
    }
    warning("the bucket keeps versions: what glidefs removes stays, and costs as before")
        .why("merging writes most data more than once, and garbage collection frees nothing here")
        .mend("set a lifecycle rule that removes noncurrent versions after some days, and expired delete markers: for S3 \
               NoncurrentVersionExpiration with NoncurrentDays, and ExpiredObjectDeleteMarker")
}

fn writes(trial: &Trial) -> Finding {
    match &trial.removed {
        Ok(()) => ok("objects can be made, read and removed"),
        Err(error) => warning(chain(error))
            .why("without the permission to delete, garbage collection frees nothing and the store grows for ever")
            .mend("permit to delete objects below the prefix of [store] url; and remove the objects glidefs-doctor-*.tmp there"),
    }
}

fn condition(trial: &Trial) -> Finding {
    let found = if trial.replaces {
        "an object was replaced that was to be created only if absent (If-None-Match)".into()
    } else if trial.winners > 1 {
        format!("{} of the creators of one object at once were told that it is theirs", trial.winners)
    } else {
        return ok("refused, also in a race");
    };
    failure(found)
        .why("two hosts could overwrite each other's volumes, and acknowledged data would be lost")
        .mend(
            "use a server with conditional creation: Amazon S3, Google Cloud Storage, Azure Blob Storage, Cloudflare R2, current MinIO \
             or Ceph; or a directory (file://)",
        )
}

fn latency(get: Duration, put: Duration) -> Finding {
    let found = format!("GET {} ms, PUT {} ms", get.as_millis(), put.as_millis());
    let finding = match get.max(put) {
        slower if slower > LATENCY_SLOW => warning(found),
        slower if slower > LATENCY_NOTED => note(found),
        _ => return ok(found),
    };
    finding
        .why("READs of data that is only in the store, and FLUSHes with durability store, wait for as long")
        .mend("use a store nearer to the host, or find out what is slow on the way (proxy, name service, the server)")
}

fn clock(ahead_millis: i64) -> Finding {
    let skew = ahead_millis.unsigned_abs();
    let side = if ahead_millis > 0 { "ahead of" } else { "behind" };
    let found = format!("{} s {side} this host's", skew / 1000);
    let finding = if skew > SKEW_REFUSED_MILLIS {
        failure(found).why(
            "a store refuses requests whose time is a quarter of an hour off: then nothing is written back",
        )
    } else if skew > SKEW_WARNED_MILLIS {
        warning(found).why("from a quarter of an hour on, a store refuses requests")
    } else {
        return ok("as this host's");
    };
    finding.mend("set the clock of this host: timedatectl set-ntp true, or install chrony")
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Failure, Note, Ok, Warning};
    use super::*;
    use crate::store::Operation;

    const NOBODYS: Whose = Whose { suffix: "", first: "" };

    fn trial() -> Trial {
        Trial {
            replaces: false,
            winners: 1,
            put: Duration::from_millis(30),
            get: Duration::from_millis(20),
            clock_ahead_millis: 0,
            missing: None,
            ranges: None,
            listing: None,
            keeps_versions: false,
            transfer: None,
            removed: Result::Ok(()),
        }
    }

    /// A host with cache and store in `folder`.
    fn host(folder: &Path) -> Host {
        let mut host = Host::example();
        host.config.cache.dir = folder.join("cache");
        host.config.store.url = Some(StoreUrl::File(folder.join("store")));
        fs::create_dir(&host.config.cache.dir).unwrap();
        host
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_is_made_by_the_first_start_only() {
        let folder = tempfile::tempdir().unwrap();
        let host = host(folder.path());
        assert_eq!(check(&host, TrialSize::BRIEF).await.0[0].verdict, Note);
        fs::write(host.config.cache.dir.join("catalog.redb"), "").unwrap();
        let findings = check(&host, TrialSize::BRIEF).await.0;
        assert!(findings.len() == 1 && findings[0].verdict == Failure, "{findings:?}");
    }

    #[tokio::test]
    async fn an_empty_place_is_tried_and_stays_empty_and_something_else_there_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let host = host(folder.path());
        let place = folder.path().join("store");
        fs::create_dir(&place).unwrap();
        let findings = check(&host, TrialSize::BRIEF).await.0;
        let verdicts: Vec<_> = findings.iter().map(|finding| (finding.check, finding.verdict)).collect();
        assert_eq!(
            verdicts[..4],
            [("store", Note), ("store disk", Note), ("store writes", Ok), ("store conditional PUT", Ok)]
        );
        assert_eq!(verdicts.len(), 9);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::write(place.join("glidefs.json"), "{\"another\": 1}").unwrap();
        let findings = check(&host, TrialSize::BRIEF).await.0;
        assert!(findings.len() == 1 && findings[0].verdict == Failure, "{findings:?}");
        assert_eq!(no_store("s3://b", true).verdict, Warning);
    }

    #[tokio::test]
    async fn a_store_that_is_not_named_or_not_for_this_command_is_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let other_user = Host { is_root: false, ..host(folder.path()) };
        let refused = Host {
            refused: Some(crate::config::ConfigError::BounceMode { value: "x".into() }),
            ..Host::example()
        };
        let mut memory = Host::example();
        memory.config.store.url = Some(StoreUrl::Memory);
        for (host, expected) in
            [(Host::example(), Note), (other_user, Note), (refused, Note), (memory, Warning)]
        {
            let (findings, id) = check(&host, TrialSize::BRIEF).await;
            assert!(findings.len() == 1 && findings[0].verdict == expected && id.is_none(), "{findings:?}");
        }
    }

    #[test]
    fn a_refusal_is_mended_by_its_cause_and_first_with_the_variables_of_the_service() {
        let (operation, key) = (Operation::Get, String::new());
        let refused =
            StoreError::Refused { operation, key: key.clone(), advice: "the clock", source: "".into() };
        let mend = |whose| trouble(&refused, whose).mend.unwrap();
        assert!(mend(NOBODYS).starts_with("the clock; "));
        assert!(mend(Whose { suffix: "", first: "once more; " }).starts_with("once more; the clock; "));
        let away =
            StoreError::Unreachable { operation, key, tries: 1, elapsed: Duration::ZERO, source: "".into() };
        assert!(trouble(&away, NOBODYS).mend.unwrap().starts_with("check the network"));
    }

    #[test]
    fn a_store_that_is_not_cleaned_or_replaces_objects_alone_or_in_a_race_is_told() {
        let judged = judge(&trial(), TrialSize::BRIEF, false);
        assert!(judged.iter().all(|finding| finding.verdict == Ok));
        assert!(promises(&judged).iter().all(|promise| promise.found.starts_with("holds: ")));
        let kept = Err(StoreError::Missing { key: "k".into() });
        assert_eq!(writes(&Trial { removed: kept, ..trial() }).verdict, Warning);
        assert_eq!(condition(&Trial { replaces: true, ..trial() }).verdict, Failure);
        assert_eq!(condition(&Trial { winners: 2, ..trial() }).verdict, Failure);
        // The answer to the winner of a race may have been lost.
        assert_eq!(condition(&Trial { winners: 0, ..trial() }).verdict, Ok);
    }

    #[test]
    fn a_store_that_breaks_a_rule_is_a_finding_and_breaks_the_promises_on_it() {
        let broken = |trial: &Trial| {
            let findings = judge(trial, TrialSize::WHOLE, false);
            let not_well = findings.iter().filter(|finding| finding.verdict > Note);
            let not_well: Vec<_> = not_well.map(|finding| (finding.check, finding.verdict)).collect();
            let promises = promises(&findings);
            let broken = promises.iter().filter(|promise| promise.found.starts_with("broken: "));
            assert!(broken.clone().all(|promise| promise.verdict == not_well[0].1));
            (not_well, broken.count())
        };
        let wrong = || Some("wrong".to_owned());
        for (trial, expected, promises) in [
            (Trial { missing: wrong(), ..trial() }, ("store reads", Failure), 2),
            (Trial { ranges: wrong(), ..trial() }, ("store reads", Failure), 2),
            (Trial { listing: wrong(), ..trial() }, ("store listing", Failure), 3),
            (Trial { keeps_versions: true, ..trial() }, ("store versions", Warning), 1),
            (Trial { winners: 2, ..trial() }, ("store conditional PUT", Failure), 3),
        ] {
            assert_eq!(broken(&trial), (vec![expected], promises));
        }
        let unasked = promises(&[failure("no route").named("store")]);
        assert!(unasked.iter().all(|promise| promise.found.starts_with("not known: ")), "{unasked:?}");
        // Generations of Google are no versions that stay.
        let kept = Trial { keeps_versions: true, ..trial() };
        assert!(judge(&kept, TrialSize::BRIEF, true).iter().all(|finding| finding.verdict == Ok));
    }

    #[tokio::test]
    async fn a_store_among_other_files_and_one_in_the_cache_are_failures() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path());
        let place = folder.path().join("store");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("report.pdf"), "mine").unwrap();
        let findings = check(&host, TrialSize::BRIEF).await.0;
        assert!(findings[0].verdict == Failure && findings[0].found.contains("report.pdf"), "{findings:?}");
        host.config.store.url = Some(StoreUrl::File(host.config.cache.dir.join("store")));
        fs::create_dir(host.config.cache.dir.join("store")).unwrap();
        let findings = check(&host, TrialSize::BRIEF).await.0;
        assert_eq!((findings[1].check, findings[1].verdict), ("store disk", Failure));
    }

    #[test]
    fn a_slow_store_is_a_note_or_a_warning_and_so_is_a_clock_that_differs_until_stores_refuse() {
        let verdict = |millis| {
            let (slow, fast) = (Duration::from_millis(millis), Duration::ZERO);
            [latency(slow, fast).verdict, latency(fast, slow).verdict]
        };
        assert_eq!([250, 300, 1001].map(verdict), [[Ok; 2], [Note; 2], [Warning; 2]]);
        let verdict = |seconds: i64| clock(seconds * 1000).verdict;
        assert_eq!([5, -5, 6, -60, 901, -901].map(verdict), [Ok, Ok, Warning, Warning, Failure, Failure]);
    }
}
