//! Cuts that settle while the pack is on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::support::*;
use crate::store::BoxError;
use crate::store::VolumeId;
use crate::store::scripted::ScriptedStore;
use crate::store::volume::commit::upload::Upload;
use crate::store::volume::{CutExtent, CutSource, Notes, NotesInMemory, VolumeError};
use crate::units::{SectorRange, Seq};

const SIZE: u64 = 64;

/// A cut that looks at the store and at the notes of daemon 1 while the cut settles, and settles if told so.
struct Settling {
    cut: Arc<MemoryCut>,
    objects: Arc<ScriptedStore>,
    /// The volume of the cut, the notes, and the highest note when the cut was made.
    volume: VolumeId,
    notes: Arc<NotesInMemory>,
    noted: Option<u64>,
    settles: AtomicBool,
}

impl Settling {
    fn new(world: &World, volume: VolumeId, seq: u64) -> Arc<Self> {
        let cut = MemoryCut::new(seq, &[(0, 8, seq)]);
        let (objects, notes) = (world.objects.clone(), world.notes_of(1).unwrap());
        let noted = notes.highest(volume);
        Arc::new(Self { cut, objects, volume, notes, noted, settles: AtomicBool::new(true) })
    }
}

impl CutSource for Settling {
    fn seq(&self) -> Seq {
        self.cut.seq()
    }

    fn extents(&self) -> &[CutExtent] {
        self.cut.extents()
    }

    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        self.cut.read(range, buffer)
    }

    fn settled(&self) -> BoxFuture<'_, Result<(), BoxError>> {
        async move {
            // Ends only when the pack is in the store: the two go on beside each other.
            loop {
                let keys = self.objects.keys().await;
                let count = |what: &str| keys.iter().filter(|key| key.contains(what)).count();
                assert_eq!(count("manifests/"), 1, "the manifest waits until the cut is settled: {keys:?}");
                let noted = self.notes.highest(self.volume);
                assert_eq!(noted, self.noted, "a copy of the disk with the note must have the data");
                if count("packs/") > 0 {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if self.settles.load(SeqCst) { Ok(()) } else { Err("the disk does not sync".into()) }
        }
        .boxed()
    }
}

#[tokio::test]
async fn the_pack_goes_to_the_store_while_the_cut_settles_and_the_manifest_waits_for_both() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let before = daemon.requests();
    let committed = volume.commit(Settling::new(&world, volume.id(), 3), SIZE).await.unwrap();
    assert_eq!((committed.crowd.packs, daemon.since(before)), (1, [0, 2, 0, 0, 0]));
    tags(&volume, range(0, 8), &[3; 8]).await;
}

#[tokio::test]
async fn a_cut_that_does_not_settle_gets_no_manifest_and_no_note_and_the_next_try_has_the_pack() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let (cut, upload) = (Settling::new(&world, volume.id(), 3), Upload::default());
    cut.settles.store(false, SeqCst);
    let noted = world.highest_note(1, volume.id());
    for _ in 0..3 {
        let error = volume.commit_on(cut.clone(), SIZE, &upload).await.unwrap_err();
        assert!(matches!(error, VolumeError::Unsettled(_)) && error.is_transient(), "{error}");
    }
    assert_eq!(world.highest_note(1, volume.id()), noted);
    cut.settles.store(true, SeqCst);
    let before = daemon.requests();
    volume.commit_on(cut, SIZE, &upload).await.unwrap();
    assert_eq!(daemon.since(before), [0, 1, 0, 0, 0], "the manifest alone");
    tags(&volume, range(0, 8), &[3; 8]).await;
}

#[tokio::test]
async fn a_pack_that_does_not_arrive_leaves_no_note_on_a_manifest_that_was_never_asked_for() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let noted = world.highest_note(1, volume.id());
    world.objects.fail_creations("packs", 1, false);
    let cut = MemoryCut::new(3, &[(0, 8, 3)]);
    volume.commit(cut.clone(), SIZE).await.unwrap_err();
    assert_eq!(world.highest_note(1, volume.id()), noted);
    volume.commit(cut, SIZE).await.unwrap();
    // Another process of the same host goes on from the manifest.
    let resumed = world.daemon(1).volumes.resume(&volume.state());
    resumed.confirm().await.unwrap();
    tags(&resumed, range(0, 8), &[3; 8]).await;
}
