//! Sectors that the disk fails to read while a cut is uploaded: given up only if nothing brings them back.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::support::*;
use super::uploads::{SECTORS, SIZE, begun, cut, holds, holds_the_cut};
use crate::store::BoxError;
use crate::store::ids::VolumeId;
use crate::store::volume::{
    CutExtent, CutSource, Loss, ManifestHash, Notes, NotesInMemory, Upload, VolumeError,
};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

/// A cut with a sector found lost when read.
struct LossyCut(Vec<CutExtent>, Mutex<Vec<SectorRange>>, ComesBack);

/// Whether the lost sector can be read later.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComesBack {
    Never,
    Perhaps,
    Now,
}

impl LossyCut {
    /// A cut of three packs, with the lost sector in the first pack.
    fn new(comes_back: ComesBack) -> Arc<Self> {
        let extents = vec![CutExtent { range: range(8, SECTORS), seq: Seq(9), zero: false }];
        Arc::new(Self(extents, Mutex::default(), comes_back))
    }
}

impl CutSource for LossyCut {
    fn seq(&self) -> Seq {
        Seq(9)
    }

    fn extents(&self) -> &[CutExtent] {
        &self.0
    }

    fn read(&self, piece: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        if piece.start() <= 20 && piece.end() > 20 {
            *self.1.lock().unwrap() = vec![range(20, 1)];
        }
        for (at, bytes) in (piece.start()..).zip(buffer.chunks_mut(SECTOR_BYTES as usize)) {
            bytes.copy_from_slice(&sector(2 * at + 1));
        }
        Ok(())
    }

    fn damaged(&self) -> Vec<SectorRange> {
        self.1.lock().unwrap().clone()
    }

    fn may_come_back(&self) -> bool {
        self.2 != ComesBack::Never && !self.damaged().is_empty()
    }

    fn has_come_back(&self) -> bool {
        self.2 == ComesBack::Now
    }
}

#[tokio::test]
async fn what_one_try_found_to_be_lost_is_listed_by_the_next_one_which_does_not_upload_it_again() {
    let (world, daemon, volume, upload) = begun(LossyCut::new(ComesBack::Never)).await;
    assert!(upload.has_losses() && world.objects.go_on());
    let (before, second) = (daemon.requests(), LossyCut::new(ComesBack::Never));
    volume.commit_on(second.clone(), SIZE, &upload).await.unwrap();
    assert_eq!(daemon.since(before), [0, 2, 0, 0, 0], "a pack and the manifest");
    assert_eq!(second.damaged(), [], "the second try did not read it");
    let view = volume.view().await.unwrap();
    assert_eq!((view.manifest().packs.len(), &view.manifest().sections.damaged), (3, &vec![range(20, 1)]));
    holds(&volume, 21, SECTORS).await;
    // Packs that are too old are made again, from what can be read then.
    world.clock.advance(Duration::from_hours(2));
    volume.commit_on(cut(), SIZE, &upload).await.unwrap();
    assert_eq!(volume.view().await.unwrap().manifest().sections.damaged, []);
    holds_the_cut(&volume).await;
}

#[tokio::test]
async fn what_can_be_read_again_before_the_manifest_is_made_is_not_given_up() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let upload = Upload::default();
    let error = volume.commit_on(LossyCut::new(ComesBack::Now), SIZE, &upload).await.unwrap_err();
    assert!(matches!(error, VolumeError::Cut(_)), "{error}");
    // Packs without losses stay.
    assert!(!upload.has_losses() && upload.progress().uploaded_bytes > 0);
    assert_eq!(volume.state().number, 1);
    // A later try does not give the sector up either, because of a pack of an earlier try.
    let upload = Upload::default();
    world.objects.end_after(2, false);
    volume.commit_on(LossyCut::new(ComesBack::Perhaps), SIZE, &upload).await.unwrap_err();
    assert!(world.objects.go_on() && !upload.has_losses());
    volume.commit_on(cut(), SIZE, &upload).await.unwrap();
    assert_eq!(volume.view().await.unwrap().manifest().sections.damaged, []);
    holds_the_cut(&volume).await;
}

/// Notes that take so long that the disk works again when the note is taken.
#[derive(Debug, Default)]
struct NotesOfSlowDisk(NotesInMemory, Arc<AtomicBool>);

impl Notes for NotesOfSlowDisk {
    fn intend(
        &self,
        volume: VolumeId,
        number: u64,
        hash: ManifestHash,
    ) -> BoxFuture<'static, io::Result<()>> {
        self.1.store(number > 1, SeqCst);
        self.0.intend(volume, number, hash)
    }

    fn intended(&self, volume: VolumeId, number: u64, hash: &ManifestHash) -> Option<bool> {
        self.0.intended(volume, number, hash)
    }

    fn highest(&self, volume: VolumeId) -> Option<u64> {
        self.0.highest(volume)
    }

    fn lose(&self, volume: VolumeId, epoch: u64, loss: &Loss) -> BoxFuture<'static, io::Result<()>> {
        self.0.lose(volume, epoch, loss)
    }

    fn loss(&self, volume: VolumeId, epoch: u64) -> Option<Loss> {
        self.0.loss(volume, epoch)
    }
}

/// A cut with a sector that can be read again when the disk is back.
struct AwayCut(Arc<LossyCut>, Arc<AtomicBool>);

impl CutSource for AwayCut {
    fn seq(&self) -> Seq {
        self.0.seq()
    }

    fn extents(&self) -> &[CutExtent] {
        self.0.extents()
    }

    fn read(&self, piece: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        self.0.read(piece, buffer)
    }

    fn damaged(&self) -> Vec<SectorRange> {
        self.0.damaged()
    }

    fn may_come_back(&self) -> bool {
        self.0.may_come_back()
    }

    fn has_come_back(&self) -> bool {
        self.1.load(SeqCst)
    }
}

#[tokio::test]
async fn a_disk_that_comes_back_while_the_manifest_is_noted_loses_nothing() {
    let world = World::new();
    let notes = Arc::<NotesOfSlowDisk>::default();
    let volume = world.copy(1, notes.clone()).volumes.create(&name("vm"), SIZE).await.unwrap();
    let (upload, is_back) = (Upload::default(), notes.1.clone());
    let away = AwayCut(LossyCut::new(ComesBack::Perhaps), is_back.clone());
    let error = volume.commit_on(Arc::new(away), SIZE, &upload).await.unwrap_err();
    assert!(matches!(error, VolumeError::Cut(_)) && is_back.load(SeqCst), "{error}");
    // Packs without losses stay.
    assert!(!upload.has_losses() && upload.progress().uploaded_bytes > 0);
    assert_eq!(volume.state().number, 1);
    // A note on a manifest never sent hinders nobody.
    volume.commit_on(cut(), SIZE, &upload).await.unwrap();
    volume.confirm().await.unwrap();
    assert_eq!((volume.state().number, volume.damaged_sectors()), (2, 0));
    holds_the_cut(&volume).await;
}
