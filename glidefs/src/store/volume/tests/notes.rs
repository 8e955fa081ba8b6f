//! Notes that fail: the manifest stays out of the store, and nothing is uploaded for nothing.

use std::io::{ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use futures_util::future::BoxFuture;

use super::divergence::{SIZE, commit};
use super::support::*;
use crate::store::ids::{VolumeId, WriterId};
use crate::store::volume::{Fence, Loss, Notes, NotesInMemory, VolumeError};

#[tokio::test]
async fn a_note_that_cannot_be_taken_keeps_the_manifest_from_the_store() {
    #[derive(Debug)]
    struct Full;
    impl Notes for Full {
        fn intend(&self, _: VolumeId, _: u64, _: [u8; 32]) -> BoxFuture<'static, Result<()>> {
            Box::pin(async { Err(ErrorKind::StorageFull.into()) })
        }

        fn intended(&self, _: VolumeId, _: u64, _: &[u8; 32]) -> Option<bool> {
            None
        }

        fn highest(&self, _: VolumeId) -> Option<u64> {
            None
        }

        fn lose(&self, _: VolumeId, _: u64, _: &Loss) -> BoxFuture<'static, Result<()>> {
            Box::pin(async { Err(ErrorKind::StorageFull.into()) })
        }

        fn loss(&self, _: VolumeId, _: u64) -> Option<Loss> {
            None
        }
    }
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let full = world.copy(1, Arc::new(Full)).volumes.resume(&volume.state());
    let error = commit(&full, 1, 1).await.unwrap_err();
    assert!(matches!(error, VolumeError::NotNoted(_)) && error.is_transient(), "{error}");
    volume.confirm().await.unwrap();
    // A loss that cannot be noted stops the volume all the same.
    let taker = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    assert_eq!(taker.writer(), Fence { epoch: 2, writer: WriterId([2; 16]) });
    assert!(matches!(full.confirm().await, Err(VolumeError::Fenced(_))));
    assert!(matches!(full.loss(), Some(Loss::Fenced(_))));
}

/// Notes that fail a given number of times.
#[derive(Debug, Default)]
struct Failing {
    notes: NotesInMemory,
    left: AtomicU32,
}

impl Notes for Failing {
    fn intend(&self, volume: VolumeId, number: u64, hash: [u8; 32]) -> BoxFuture<'static, Result<()>> {
        if self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Box::pin(async { Err(ErrorKind::StorageFull.into()) });
        }
        self.notes.intend(volume, number, hash)
    }

    fn intended(&self, volume: VolumeId, number: u64, hash: &[u8; 32]) -> Option<bool> {
        self.notes.intended(volume, number, hash)
    }

    fn highest(&self, volume: VolumeId) -> Option<u64> {
        self.notes.highest(volume)
    }

    fn lose(&self, volume: VolumeId, epoch: u64, loss: &Loss) -> BoxFuture<'static, Result<()>> {
        self.notes.lose(volume, epoch, loss)
    }

    fn loss(&self, volume: VolumeId, epoch: u64) -> Option<Loss> {
        self.notes.loss(volume, epoch)
    }
}

#[tokio::test]
async fn while_nothing_can_be_noted_nothing_is_uploaded_again_and_again() {
    let (world, notes) = (World::new(), Arc::new(Failing::default()));
    let daemon = world.copy(1, notes.clone());
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        commit(&volume, seq, seq).await.unwrap();
    }
    // A cut: packs uploaded before the first failing note, and packs uploaded when notes can be taken again.
    let before = daemon.requests();
    notes.left.store(20, SeqCst);
    let mut failures = 0;
    while commit(&volume, 9, 9).await.is_err() {
        failures += 1;
    }
    let [_, puts, ..] = daemon.since(before);
    assert_eq!((failures, puts), (20, 2 + 1), "packs, and the manifest");
    // A merge.
    let before = daemon.requests();
    notes.left.store(20, SeqCst);
    let mut failures = 0;
    while volume.compact().await.is_err() {
        failures += 1;
    }
    let [_, puts, ..] = daemon.since(before);
    assert_eq!((failures, puts), (20, 2 + 1), "packs, and the manifest");
    tags(&volume, range(0, 8), &[9; 8]).await;
}
