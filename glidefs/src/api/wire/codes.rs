//! The codes of refusals: one closed table, with the meaning of each code and the next step.
//!
//! Invariants: a code keeps its name and its meaning; codes are added, never renamed. A client meets codes of newer daemons, so a client
//! that does not know a code goes by the status.

use std::fmt::Write;

use utoipa::ToSchema;

use super::problem::ProblemExplanation;

/// The path below which each code is explained.
pub const PROBLEMS_PATH: &str = "/v1/problems";

macro_rules! codes {
    ($($variant:ident = $code:literal [$($status:literal),+] $title:literal, $meaning:literal, $remedy:literal;)*) => {
        /// A code of a refusal. Later versions add codes: a client that does not know a code goes by the status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
        pub enum ProblemCode {
            $(#[doc = $title] #[schema(rename = $code)] $variant,)*
        }

        impl ProblemCode {
            /// All codes, in the order of their names.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The code as in answers.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// The statuses of answers with the code.
            pub const fn statuses(self) -> &'static [u16] {
                match self { $(Self::$variant => &[$($status),+],)* }
            }

            /// The problem in a few words, the same in every answer with the code.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// The cause of a refusal with the code, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }

            /// The next step of whoever gets the code.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)* }
            }
        }
    };
}

codes! {
    BadName = "bad_name" [400] "The name is not allowed.",
        "A name begins with a letter or a digit, and has letters, digits, `.`, `_` and `-`: 128 characters at most.",
        "Choose another name.";
    BadParameter = "bad_parameter" [400] "A parameter is out of its bounds.",
        "A number of the request is smaller or larger than allowed.",
        "Keep to the bounds that `detail` names.";
    BadRequest = "bad_request" [400] "The request is not understood.",
        "The body is not the JSON of this operation, the query has an unknown parameter, or text is not UTF-8.",
        "Compare the request with `/openapi.json`.";
    BadSize = "bad_size" [400] "The size is not allowed.",
        "A size is a positive multiple of 512 bytes, up to the largest size of a volume.",
        "Choose another size.";
    CannotShrink = "cannot_shrink" [409] "An export cannot become smaller.",
        "The size asked for is less than the present size.",
        "Create a smaller export, and copy the content.";
    Catalog = "catalog" [500] "The catalog of exports failed.",
        "The daemon could not note the change in its database on the disk of `cache.dir`. The change may have been made in part.",
        "Mend or free the disk, and send the request again.";
    CatalogFails = "catalog_fails" [503] "The catalog of exports cannot be written.",
        "The disk of `cache.dir` refuses writes to the database of exports. Exports are served on, and none can be changed.",
        "Make room on the disk, or mend the disk.";
    Conflict = "conflict" [409] "The name is in use on this host.",
        "The deleted volume is to have the name of an export of this host.",
        "Undelete the volume under another name.";
    Damaged = "damaged" [409] "The volume in the store is damaged.",
        "Objects of the volume in the store are missing or do not match their checksums.",
        "Open a snapshot of the volume, or restore the objects that `detail` names.";
    DeviceFailed = "device_failed" [500] "The kernel failed at the block device.",
        "A command of the kernel's driver failed; `detail` has the error of the kernel.",
        "See the kernel's log, and run `glidefs doctor`.";
    DeviceLimitReached = "device_limit_reached" [503] "The kernel has no further block devices.",
        "As many ublk devices exist as the kernel allows.",
        "Raise `ublks_max` of the module ublk_drv, or detach exports.";
    DeviceTimedOut = "device_timed_out" [504] "The kernel did not answer in time.",
        "A command of the kernel's driver has not ended in its time. The command may end later.",
        "Look at the export, and send the request again.";
    Diverged = "diverged" [409] "The export has two histories.",
        "The store has commits of another writer that this host does not know, as after a restored disk.",
        "Fork the local content, or open the export with `discard_local`.";
    ExistsInStore = "exists_in_store" [409] "The store has a volume of the name.",
        "Another volume has the name in the store; any host may have it open.",
        "Choose another name, or open the volume.";
    ExistsWithOtherParameters = "exists_with_other_parameters" [409] "The export exists with other parameters.",
        "An export of the name exists, and differs from the one asked for in the parameter that `detail` names.",
        "Choose another name, or ask for the same parameters; limits and weight can be changed.";
    Fenced = "fenced" [409] "Another host has taken the export over.",
        "A newer writer of the volume is known to the store, or the volume was deleted: this host never writes to the volume again.",
        "Use the export on the other host, or fork the local content.";
    FlushFailed = "flush_failed" [500] "Writing back failed.",
        "Data of the export could not be read from the cache, or not be written to the store.",
        "See the log of the daemon; the daemon tries again by itself.";
    Forbidden = "forbidden" [403] "This client may not send the request.",
        "The rules of access refuse the client: over TCP without a token, a web page, or a user who may not use the socket.",
        "Use the Unix socket, or set `[api] token_file`; `detail` says which.";
    HalfDeleted = "half_deleted" [409, 503] "The export is deleted in part.",
        "A deletion has begun and not ended, as the store did not answer.",
        "Delete the export again.";
    HalfRolledBack = "half_rolled_back" [409] "The export is rolled back in part.",
        "A rollback has begun and not ended, as the store did not answer.",
        "Attach the export, or roll back again, when the store answers.";
    Held = "held" [409] "Another host has the export.",
        "The host that `detail` names has the volume open and has not released it.",
        "Detach the export on the other host, or open it with `take_over`.";
    IdsExhausted = "ids_exhausted" [507] "No export id is left.",
        "Ids of exports are never used again, and all are used up on this host.",
        "Begin with an empty cache on another directory.";
    InUse = "in_use" [409] "The device is in use.",
        "The block device is mounted, or held in another way, or its users cannot be found out.",
        "Unmount the device, or set `force`.";
    Internal = "internal" [500] "The daemon failed while answering.",
        "An error in glidefs itself, or a daemon that is about to stop.",
        "See the log of the daemon.";
    KernelTooOld = "kernel_too_old" [501] "The kernel is too old for this.",
        "The kernel's driver does not have the operation.",
        "Use a newer kernel; `detail` names the version.";
    MethodNotAllowed = "method_not_allowed" [405] "The path does not take this method.",
        "The path exists, and has other methods, which the header `Allow` names.",
        "See `/openapi.json`.";
    NoDriver = "no_driver" [503] "The kernel has no ublk driver.",
        "The module ublk_drv is not loaded, or the kernel has none.",
        "Run `modprobe ublk_drv`, and `glidefs doctor`.";
    NoPermission = "no_permission" [503] "The daemon may not make block devices.",
        "The kernel refuses the daemon for lack of rights.",
        "Run the daemon as root or with CAP_SYS_ADMIN.";
    NoStore = "no_store" [409] "The daemon has no store.",
        "The operation needs an object store, and the configuration names none.",
        "Set `[store] url`.";
    NotDetached = "not_detached" [409] "The export has a device.",
        "The operation is for exports without a device.",
        "Detach the export first.";
    NotFlushed = "not_flushed" [503] "Data is not in the store yet.",
        "The operation needs all data of the export in the store, and the store has not taken the newest data.",
        "Send the request again when the store answers; the log of the daemon says why it did not.";
    NotFound = "not_found" [404] "There is no such export or path.",
        "This host has no export of the name, or the daemon does not have the path.",
        "`GET /v1/exports` lists the exports, `/openapi.json` the paths.";
    NotInStore = "not_in_store" [404, 409] "The store does not have it.",
        "The store has no such volume or snapshot, or the export has no volume in the store.",
        "`GET /v1/store/exports` lists the volumes, `GET /v1/exports/{name}/snapshots` the snapshots.";
    NotLost = "not_lost" [409] "The export is not lost.",
        "The operation is for exports that another host has taken over, or that have two histories.",
        "Use the export as it is.";
    NotReady = "not_ready" [503] "The daemon is not ready yet.",
        "Exports are being recovered after a start.",
        "Send the request again when `GET /readyz` has status 200.";
    Replaced = "replaced" [409] "Another volume has the name in the store.",
        "The export was lost to another host, and the volume of the name in the store is another one now. Nothing was changed.",
        "Fork the local content, or delete the export, which leaves the store alone.";
    SnapshotExists = "snapshot_exists" [409] "A snapshot of the name exists.",
        "The export has a snapshot of the name, of an earlier moment.",
        "Choose another name, or delete the snapshot.";
    SnapshotGone = "snapshot_gone" [409] "The snapshot is gone.",
        "The snapshot of a rollback was deleted meanwhile. The export goes on with the content of the store.",
        "Attach the export, or roll back to another snapshot.";
    SnapshotNeeded = "snapshot_needed" [409] "The snapshot is needed for a rollback.",
        "A rollback to the snapshot has begun and not ended.",
        "Attach the export, or roll back to another snapshot, and delete the snapshot then.";
    Stopping = "stopping" [503] "The daemon is stopping.",
        "The daemon takes no further operations; a successor may take over.",
        "Send the request again when the next daemon runs.";
    StoreFailed = "store_failed" [500, 503] "The store failed.",
        "The store refused a request, or an object is not as it should be.",
        "Check address and credentials of the store with `glidefs doctor`.";
    StoreUnavailable = "store_unavailable" [503] "The store does not answer.",
        "The store cannot be reached, or was too slow.",
        "Send the request again when the store answers.";
    Timeout = "timeout" [408] "The body of the request did not come in time.",
        "The body was not complete 30 s after the header.",
        "Send the request again.";
    TooLarge = "too_large" [413] "The request is too large.",
        "The body is larger than 64 KiB.",
        "Send less.";
    TooManyExports = "too_many_exports" [409] "The host has as many exports as allowed.",
        "The number of exports has reached `[exports] max`.",
        "Delete exports, or raise the bound.";
    TooManyTraces = "too_many_traces" [503] "Too many clients read traces.",
        "Four clients read traces.",
        "End one of the clients, or ask again later.";
    TooManyUnderWay = "too_many_under_way" [503] "Too many requests are under way.",
        "Requests that wait for the store have half of `[api] connections_max`, all that change something seven eighths. Nothing of this \
         one was done.",
        "Send the request again after the seconds of the header `Retry-After`; if it is refused for long, the store may be away.";
    Unauthorized = "unauthorized" [401] "The token is missing or wrong.",
        "Over TCP all but a few paths need the token of `[api] token_file`.",
        "Send `Authorization: Bearer TOKEN`, or use the Unix socket.";
    Unconfirmed = "unconfirmed" [503] "The store has not confirmed who has the export.",
        "After a start without the store the daemon does not know whether this host still has the export.",
        "Wait until the store answers, or attach the export with `unconfirmed`.";
    UpgradeFailed = "upgrade_failed" [409] "The successor cannot take over.",
        "The program failed its checks; the daemon goes on as before.",
        "Read the reason in `detail`.";
    UpgradeUnderWay = "upgrade_under_way" [409] "An upgrade is under way.",
        "Another upgrade has begun and not ended.",
        "`GET /v1/status` tells the end in `last_upgrade`.";
    WrongHost = "wrong_host" [403] "The header Host names another host.",
        "Without a token the name in `Host` must be this host's, as a guard against web pages.",
        "Use an address, or add the name to `[api] hosts`.";
}

impl ProblemCode {
    /// The code called `text`; `None` for a code of a newer daemon.
    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }

    /// Whether an answer with the code says when to send the request again.
    pub const fn has_retry_after(self) -> bool {
        matches!(self, Self::TooManyUnderWay)
    }

    /// Where the daemon explains the code.
    pub fn path(self) -> String {
        format!("{PROBLEMS_PATH}/{}", self.as_str())
    }

    /// The explanation of the code, as answered by the daemon.
    pub fn explanation(self) -> ProblemExplanation {
        ProblemExplanation {
            code: self.as_str().into(),
            title: self.title().into(),
            statuses: self.statuses().to_vec(),
            meaning: self.meaning().into(),
            remedy: self.remedy().into(),
        }
    }
}

/// All codes, as the table of docs/api.md.
pub fn markdown() -> String {
    let mut table = String::from("| Code | Status | Meaning | What to do |\n|---|---|---|---|\n");
    for code in ProblemCode::ALL {
        let statuses: Vec<String> = code.statuses().iter().map(ToString::to_string).collect();
        let (name, statuses) = (code.as_str(), statuses.join(", "));
        let (title, meaning, remedy) = (code.title(), code.meaning(), code.remedy());
        // Writing to a string does not fail.
        let _ = writeln!(table, "| `{name}` | {statuses} | {title} {meaning} | {remedy} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_each_is_found_by_its_name() {
        assert!(ProblemCode::ALL.is_sorted_by(|a, b| a.as_str() < b.as_str()));
        for code in ProblemCode::ALL {
            assert_eq!(ProblemCode::of(code.as_str()), Some(*code));
            assert!(code.statuses().iter().all(|status| (400..600).contains(status)), "{code:?}");
            assert!(code.title().ends_with('.') && code.meaning().ends_with('.'), "{code:?}");
        }
        assert_eq!(ProblemCode::of("of a newer daemon"), None);
    }
}
