//! Work that may block, on a thread made for blocking.
//!
//! Owns how a panic and a shutdown come back to the caller. Does not own the work.

use std::panic::resume_unwind;

use super::error::VolumeError;

/// Runs `work` on a thread that may block. A panic of `work` goes on in the caller.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(VolumeError::Stopping),
        },
    }
}
