//! Spawns tasks in a box each, so that glibc can use their memory again.
//!
//! Owns the place of a task's future in memory: a box of its own. Does not own what tasks do.

use std::pin::Pin;

use tokio::task::JoinHandle;

/// `work` in a box, to be spawned.
///
/// The runtime keeps the future of a task in a block that is aligned to 128 bytes. glibc looks for such a block among free ones that
/// are larger by the alignment, and so never uses the block of an ended task for the next task of the same kind: a thousand devices
/// created at once left 700 holes of 9 KiB in the heap (glibc 2.36). The block of a box is found again, and what the runtime keeps
/// beside the box is small. The runtime itself puts futures of more than 16 KiB into a box.
pub(crate) fn boxed<W: Future>(work: W) -> Pin<Box<W>> {
    Box::pin(work)
}

/// Spawns `work` in a box.
pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(work))
}
