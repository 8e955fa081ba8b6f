//! Work on all exports, off the control threads.
//!
//! Owns where the work runs: a list of 20,000 exports takes tens of milliseconds, during which a control thread would answer nobody
//! else.

use super::error::ApiError;

/// The result of `work`, done on a thread for blocking work.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal("the daemon stops"))
}
