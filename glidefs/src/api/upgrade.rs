//! Upgrades of the daemon, as the API reaches them.
//!
//! Owns the trait, the refusals, and who may name the program. Does not own the upgrade (`daemon`). Invariant: a program is named over the
//! Unix socket only, by root or the user of the daemon; everybody else who may use the API gets the program that was installed.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use tokio::net::unix::UCred;

use super::body::JsonBody;
use super::error::ApiError;
use super::state::AppState;
use super::wire::ProblemCode as P;
use super::wire::{Upgrade, UpgradeBegun, UpgradeRequest};

/// Upgrades of the daemon, as the API reaches them.
#[async_trait]
pub trait Upgrades: Send + Sync {
    /// Checks `program`, or the program that was installed, and has the daemon go on as that program after the answer. Goes on when the
    /// client goes away.
    async fn begin(self: Arc<Self>, program: Option<PathBuf>) -> Result<UpgradeBegun, UpgradeError>;

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

/// Replaces the daemon by another program: the one installed in place of the daemon's, or `binary`. The answer comes when the program has
/// checked configuration and cache; then the daemon goes on as that program, and devices pause until it serves. `GET /v1/status` tells
/// the end.
#[utoipa::path(
    post, path = "/v1/upgrade", operation_id = "upgrade", tag = "daemon", request_body = UpgradeRequest,
    responses(
        (status = 202, description = "The program is fit, and takes over now.", body = UpgradeBegun),
    )
)]
pub(super) async fn upgrade(
    State(state): State<AppState>,
    peer: Option<Extension<UCred>>,
    JsonBody(request): JsonBody<UpgradeRequest>,
) -> Result<(StatusCode, Json<UpgradeBegun>), ApiError> {
    let owns = [0, nix::unistd::geteuid().as_raw()];
    if request.binary.is_some() && !peer.is_some_and(|Extension(peer)| owns.contains(&peer.uid())) {
        return Err(ApiError::new(
            P::Forbidden,
            "only root and the user of the daemon may name the program, and over the Unix socket only: install the program in place \
             of the daemon's, and leave binary out",
        ));
    }
    let upgrades = state.upgrades.ok_or(UpgradeError::NotReady)?;
    let begun = upgrades.begin(request.binary.map(PathBuf::from)).await?;
    Ok((StatusCode::ACCEPTED, Json(begun)))
}
