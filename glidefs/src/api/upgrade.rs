//! Upgrades of the daemon, as the API reaches them. The route is in `route`.
//!
//! Owns the trait and the refusals. Does not own the upgrade (`daemon`) nor who may name the program (`route`).

pub(super) mod route;

use std::path::PathBuf;

use futures_util::future::BoxFuture;

use super::wire::{Upgrade, UpgradeBegun};

/// Upgrades of the daemon, as the API reaches them.
pub trait Upgrades: Send + Sync {
    /// Checks `program`, or the program that was installed, and has the daemon go on as that program after the answer. Goes on when the
    /// client goes away.
    fn begin(&self, program: Option<PathBuf>) -> BoxFuture<'static, Result<UpgradeBegun, UpgradeError>>;

    /// The upgrade that ended last, as far as this process knows.
    fn last(&self) -> Option<Upgrade>;
}

/// Why no upgrade begins. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Another upgrade is under way.
    #[error("an upgrade is under way: `glidefs status` shows its end")]
    UnderWay,
    /// The start of the daemon has not ended.
    #[error("exports are being recovered: ask again when the daemon is ready")]
    NotReady,
    /// After the upgrade an export would wait for the store, which is away.
    #[error(
        "the store is away, and has to confirm {export} before a new program may serve this export: upgrade when the store answers, as \
         the device would wait until then"
    )]
    StoreAway { export: String },
    /// The program is refused.
    #[error("{reason} (the daemon goes on as before)")]
    Failed {
        /// The error for the user.
        reason: String,
    },
}
