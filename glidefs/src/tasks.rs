//! Tasks in a box each, so that glibc can use their memory again, and the export for which tasks and threads work.
//!
//! Owns the place of a task's future in memory, and the name of the export from the begin of a piece of work to its end. Does not own what
//! tasks do, nor what follows from an export whose work ends the daemon (`router::deaths`). Invariants: a task works for the export of the
//! task that began it, unless it is begun for another one; only work that stops when an export is held back is work for the export.

use std::cell::Cell;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

use crate::units::ExportId;

thread_local! {
    static EXPORT: Cell<Option<ExportId>> = const { Cell::new(None) };
}

/// The export for which the calling thread works.
pub(crate) fn export() -> Option<ExportId> {
    EXPORT.get()
}

/// The calling thread works for an export until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct WorkFor {
    before: Option<ExportId>,
    /// Dropped by the thread that began the work.
    _thread: PhantomData<*const ()>,
}

/// Begins work for `export` on the calling thread.
#[inline]
pub(crate) fn work_for(export: Option<ExportId>) -> WorkFor {
    WorkFor { before: EXPORT.replace(export), _thread: PhantomData }
}

impl Drop for WorkFor {
    #[inline]
    fn drop(&mut self) {
        EXPORT.set(self.before);
    }
}

/// A future in a box, and the export for which it works.
#[derive(Debug)]
pub(crate) struct Task<W> {
    export: Option<ExportId>,
    work: Pin<Box<W>>,
}

impl<W: Future> Future for Task<W> {
    type Output = W::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<W::Output> {
        let _work = work_for(self.export);
        self.work.as_mut().poll(context)
    }
}

/// `work` in a box, to be spawned.
///
/// The runtime keeps the future of a task in a block that is aligned to 128 bytes. glibc looks for such a block among free ones that
/// are larger by the alignment, and so never uses the block of an ended task for the next task of the same kind: a thousand devices
/// created at once left 700 holes of 9 KiB in the heap (glibc 2.36). The block of a box is found again, and what the runtime keeps
/// beside the box is small. The runtime itself puts futures of more than 16 KiB into a box.
pub(crate) fn boxed<W: Future>(work: W) -> Task<W> {
    Task { export: export(), work: Box::pin(work) }
}

/// As [`boxed`], for work for `export`.
pub(crate) fn for_export<W: Future>(export: ExportId, work: W) -> Task<W> {
    Task { export: Some(export), work: Box::pin(work) }
}

/// Spawns `work` in a box.
pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_works_for_its_export_while_it_is_polled_and_so_do_the_tasks_that_it_begins() {
        let both = for_export(ExportId(1), async {
            let begun = spawn(async {
                tokio::task::yield_now().await;
                export()
            });
            tokio::task::yield_now().await;
            (export(), begun.await.unwrap())
        });
        assert_eq!(tokio::spawn(both).await.unwrap(), (Some(ExportId(1)), Some(ExportId(1))));
        assert_eq!(spawn(async { export() }).await.unwrap(), None);
    }

    #[test]
    fn work_within_work_leaves_the_export_of_the_outer_work() {
        let outer = work_for(Some(ExportId(1)));
        let inner = work_for(Some(ExportId(2)));
        assert_eq!(export(), Some(ExportId(2)));
        drop(inner);
        assert_eq!(export(), Some(ExportId(1)));
        drop(outer);
        assert_eq!(export(), None);
    }
}
