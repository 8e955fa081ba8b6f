//! The route of upgrades.
//!
//! Owns who may name the program. Invariant: a program is named over the Unix socket only, by root or the user of the daemon; everybody else
//! who may use the API gets the program that was installed.

use std::path::PathBuf;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};

use crate::api::body::JsonBody;
use crate::api::error::ApiError;
use crate::api::peer::PeerUser;
use crate::api::state::AppState;
use crate::api::upgrade::UpgradeError;
use crate::api::wire::ProblemCode as P;
use crate::api::wire::{UpgradeBegun, UpgradeRequest};

/// Replaces the daemon by another program: the one installed in place of the daemon's, or `binary`. The answer comes when the program has
/// checked configuration and cache; then the daemon goes on as that program, and devices pause until it serves. `GET /v1/status` tells
/// the end.
#[utoipa::path(
    post, path = "/v1/upgrade", operation_id = "upgrade", tag = "daemon", request_body = UpgradeRequest,
    responses(
        (status = 202, description = "The program is fit, and takes over now.", body = UpgradeBegun),
    )
)]
pub(in crate::api) async fn upgrade(
    State(state): State<AppState>,
    peer: Option<Extension<PeerUser>>,
    JsonBody(request): JsonBody<UpgradeRequest>,
) -> Result<(StatusCode, Json<UpgradeBegun>), ApiError> {
    if request.binary.is_some() && !peer.is_some_and(|Extension(peer)| peer.is_the_daemons_or_root()) {
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
