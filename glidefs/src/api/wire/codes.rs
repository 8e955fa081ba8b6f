//! The codes of refusals: one closed table, with status, title and next step of each code.
//!
//! Does not own which error has which code (`api/error`). Invariants: a code keeps its name and its meaning; codes are added, never renamed. A
//! client meets codes of newer daemons, so a client that does not know a code goes by the status.

use utoipa::ToSchema;

macro_rules! codes {
    ($($variant:ident $code:literal [$($status:literal),+] $title:literal $next:literal;)*) => {
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

            /// The statuses of answers with the code, the usual one first.
            pub const fn statuses(self) -> &'static [u16] {
                match self { $(Self::$variant => &[$($status),+],)* }
            }

            /// The problem in a few words, the same in every answer with the code.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// The next step of whoever gets the code.
            pub const fn next_step(self) -> &'static str {
                match self { $(Self::$variant => $next,)* }
            }
        }
    };
}

codes! {
    BadName "bad_name" [400] "The name is not allowed."
        "Choose a name of letters, digits, `.`, `_` and `-` that begins with a letter or a digit: 128 characters at most.";
    BadParameter "bad_parameter" [400] "A parameter is out of its bounds." "Keep to the bounds that `detail` names.";
    BadRequest "bad_request" [400] "The request is not understood." "Compare body and query with `/openapi.json`.";
    BadSize "bad_size" [400] "The size is not allowed."
        "Choose a positive multiple of 512 bytes, up to the largest size of a volume.";
    CannotShrink "cannot_shrink" [409] "An export cannot become smaller." "Create a smaller export, and copy the content.";
    Catalog "catalog" [500] "The change could not be noted in the catalog, and may have been made in part."
        "Mend or free the disk of `cache.dir`, and send the request again.";
    CatalogFails "catalog_fails" [503] "The catalog cannot be written: exports are served on, and none can be changed."
        "Make room on the disk of `cache.dir`, or mend the disk.";
    Conflict "conflict" [409] "The deleted volume is to have the name of an export of this host." "Undelete the volume under another name.";
    Damaged "damaged" [409] "Objects of the volume in the store are missing or damaged."
        "Open a snapshot of the volume, or restore the objects that `detail` names.";
    DeviceFailed "device_failed" [500] "A command of the kernel's driver failed." "See the kernel's log, and run `glidefs doctor`.";
    DeviceLimitReached "device_limit_reached" [503] "The kernel has no further block devices."
        "Raise `ublks_max` of the module ublk_drv, or detach exports.";
    DeviceTimedOut "device_timed_out" [504] "The kernel did not answer in time; the command may end later."
        "Look at the export, and send the request again.";
    Diverged "diverged" [409] "The export has two histories, as after a restored disk."
        "Fork the local content, or open the export with `discard_local`.";
    ExistsInStore "exists_in_store" [409] "The store has another volume of the name." "Choose another name, or open the volume.";
    ExistsWithOtherParameters "exists_with_other_parameters" [409] "The export exists with other parameters."
        "Choose another name, or ask for the same parameters; size and properties can be changed.";
    Fenced "fenced" [409] "Another host has taken the export over, or the volume was deleted: this host never writes to the volume again."
        "Use the export on the other host, or fork the local content.";
    FlushFailed "flush_failed" [500] "Writing back failed." "See the log of the daemon; the daemon tries again by itself.";
    Forbidden "forbidden" [403] "This client may not send the request."
        "Use the Unix socket, or set `[api] token_file`; `detail` says which.";
    HalfDeleted "half_deleted" [409, 503] "A deletion has begun and not ended, as the store did not answer." "Delete the export again.";
    HalfRolledBack "half_rolled_back" [409] "A rollback has begun and not ended, as the store did not answer."
        "Attach the export, or roll back again, when the store answers.";
    Held "held" [409] "Another host has the volume open and has not released it."
        "Detach the export on the host that `detail` names, or open it with `take_over`.";
    HeldBack "held_back" [409] "The daemon died twice of work for the export."
        "Read the reason in `detail`; attach the export with `held_back`, which tries again.";
    IdsExhausted "ids_exhausted" [507] "No export id is left." "Begin with an empty cache on another directory.";
    InUse "in_use" [409] "The device is mounted, held in another way, or its users cannot be found out."
        "Unmount the device, or set `force`.";
    Internal "internal" [500] "The daemon failed while answering." "See the log of the daemon.";
    KernelTooOld "kernel_too_old" [501] "The kernel is too old for this, or known to be broken." "Use another kernel; `detail` says which.";
    MethodNotAllowed "method_not_allowed" [405] "The path does not take this method."
        "See `/openapi.json`, or the header `Allow`.";
    NoDriver "no_driver" [503] "The kernel has no ublk driver." "Run `modprobe ublk_drv`, and `glidefs doctor`.";
    NoPermission "no_permission" [503] "The daemon may not make block devices." "Run the daemon as root or with CAP_SYS_ADMIN.";
    NoStore "no_store" [409] "The daemon has no store." "Set `[store] url`.";
    NotDetached "not_detached" [409] "The export has a device." "Detach the export first.";
    NotFlushed "not_flushed" [503] "The store has not taken the newest data of the export yet."
        "Send the request again when the store answers; the log of the daemon says why it did not.";
    NotFound "not_found" [404] "There is no such export or path." "`GET /v1/exports` lists the exports, `/openapi.json` the paths.";
    NotInStore "not_in_store" [404, 409] "The store has no such volume or snapshot."
        "`GET /v1/store/exports` lists the volumes, `GET /v1/exports/{name}/snapshots` the snapshots.";
    NotLost "not_lost" [409] "The export is not lost: no other host has taken it over, and it has one history." "Use the export as it is.";
    NotReady "not_ready" [503] "Exports are being recovered after a start." "Send the request again when `GET /readyz` has status 200.";
    Replaced "replaced" [409] "The export was lost, and another volume has its name in the store now. Nothing was changed."
        "Fork the local content, or delete the export, which leaves the store alone.";
    SnapshotExists "snapshot_exists" [409] "The export has a snapshot of the name, of an earlier moment."
        "Choose another name, or delete the snapshot.";
    SnapshotGone "snapshot_gone" [409] "The snapshot of a rollback was deleted meanwhile: the export goes on with the content of the store."
        "Attach the export, or roll back to another snapshot.";
    SnapshotNeeded "snapshot_needed" [409] "A rollback to the snapshot has begun and not ended."
        "Attach the export, or roll back to another snapshot, and delete the snapshot then.";
    Stopping "stopping" [503] "The daemon is stopping." "Send the request again when the next daemon runs.";
    StoreFailed "store_failed" [500, 503] "The store refused a request, or an object is not as it should be."
        "Check address and credentials of the store with `glidefs doctor`.";
    StoreUnavailable "store_unavailable" [503] "The store does not answer." "Send the request again when the store answers.";
    Timeout "timeout" [408] "The body of the request was not complete 30 s after the header." "Send the request again.";
    TooLarge "too_large" [413] "The body of the request is larger than 64 KiB." "Send less.";
    TooManyExports "too_many_exports" [409] "The number of exports has reached `[exports] max`." "Delete exports, or raise the bound.";
    TooManyUnderWay "too_many_under_way" [503]
        "Requests that wait for the store have half of `[api] connections_max`, all that change something seven eighths. Nothing was done."
        "Send the request again after the seconds of `Retry-After`; if it is refused for long, the store may be away.";
    Unauthorized "unauthorized" [401] "The token is missing or wrong."
        "Send `Authorization: Bearer TOKEN` with the token of `[api] token_file`, or use the Unix socket.";
    Unconfirmed "unconfirmed" [503] "The store has not confirmed since the start that this host still has the export."
        "Wait until the store answers, or attach the export with `unconfirmed`.";
    UpgradeFailed "upgrade_failed" [409] "The program failed its checks; the daemon goes on as before." "Read the reason in `detail`.";
    UpgradeUnderWay "upgrade_under_way" [409] "Another upgrade has begun and not ended." "`GET /v1/status` tells the end in `last_upgrade`.";
    WrongHost "wrong_host" [403] "Without a token the name in the header `Host` must be this host's, as a guard against web pages."
        "Use an address, or add the name to `[api] hosts`.";
}

impl ProblemCode {
    /// The code called `text`; `None` for a code of a newer daemon.
    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
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
            assert!(code.title().ends_with('.') && code.next_step().ends_with('.'), "{code:?}");
        }
        assert_eq!(ProblemCode::of("of a newer daemon"), None);
    }
}
