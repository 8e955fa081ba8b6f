//! Cuts whose upload takes longer than garbage collection waits for a manifest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tokio::runtime::Handle;

use super::support::*;
use crate::store::BoxError;
use crate::store::client::Store;
use crate::store::clock::StoreClock;
use crate::store::format::PACK_BYTES_TARGET;
use crate::store::gc::{GcOptions, GcReport, collect};
use crate::store::ids::PackId;
use crate::store::scripted::ManualClock;
use crate::store::volume::Upload;
use crate::store::volume::{CutExtent, CutSource, GRACE_MIN, StatePoint, UPLOAD_TIME_MAX, VolumeWriter};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

const SIZE: u64 = 1 << 21;
const PACKS: u64 = 8;
/// Six packs and a short one.
const SECTORS: u64 = ((PACKS - 1) * PACK_BYTES_TARGET + (5 << 20)) / SECTOR_BYTES;
const PACK_SECTORS: u64 = PACK_BYTES_TARGET / SECTOR_BYTES;
/// Upload time of a pack: two packs uploaded together are in time for a manifest, all packs are not.
const PACK_TIME: Duration = Duration::from_mins(75);

/// A cut whose packs take their time, while garbage is collected.
struct LongCut {
    cut: BigCut,
    clock: Arc<ManualClock>,
    store: Store,
    runtime: Handle,
    /// Whether the next read from the middle on fails.
    breaks: AtomicBool,
    pack_time: Duration,
}

impl LongCut {
    fn new(world: &World) -> Arc<Self> {
        Self::breaking(world, false)
    }

    fn breaking(world: &World, breaks: bool) -> Arc<Self> {
        Arc::new(Self {
            cut: BigCut(vec![CutExtent { range: range(0, SECTORS), seq: Seq(9), zero: false }]),
            clock: world.clock.clone(),
            store: world.daemon(9).volumes.store().clone(),
            runtime: Handle::current(),
            breaks: AtomicBool::new(breaks),
            pack_time: PACK_TIME,
        })
    }
}

impl CutSource for LongCut {
    fn seq(&self) -> Seq {
        self.cut.seq()
    }

    fn extents(&self) -> &[CutExtent] {
        self.cut.extents()
    }

    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        if range.start() > SECTORS / 2 && self.breaks.swap(false, SeqCst) {
            return Err("the disk is away".into());
        }
        if range.start().is_multiple_of(PACK_SECTORS) {
            self.clock.advance(self.pack_time);
            self.runtime.block_on(gc(&self.store, &self.clock));
        }
        self.cut.read(range, buffer)
    }
}

async fn gc(store: &Store, clock: &ManualClock) -> GcReport {
    let options = GcOptions { grace: GRACE_MIN, ..GcOptions::default() };
    collect(store, clock, &options).await.unwrap()
}

/// Two runs of garbage collection, [`GRACE_MIN`] apart.
async fn gc_all(world: &World) -> GcReport {
    let daemon = world.daemon(9);
    gc(daemon.volumes.store(), &world.clock).await;
    world.clock.advance(GRACE_MIN);
    gc(daemon.volumes.store(), &world.clock).await
}

async fn holds_the_cut(volume: &VolumeWriter) {
    for start in [0, 65_530, SECTORS - 100] {
        let expected: Vec<Tag> = (start..start + 100).map(|at| 2 * at + 1).collect();
        tags(volume, range(start, 100), &expected).await;
    }
}

async fn uploaded(volume: &VolumeWriter) -> Vec<PackId> {
    volume.view().await.unwrap().manifest().sections.uploaded.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_takes_longer_than_garbage_collection_waits_comes_into_the_store() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let late = world.clock.since_boot() + UPLOAD_TIME_MAX + GRACE_MIN;
    volume.commit(LongCut::new(&world), SIZE).await.unwrap();
    assert!(world.clock.since_boot() > late);
    let view = volume.view().await.unwrap();
    assert_eq!((view.manifest().packs.len() as u64, uploaded(&volume).await), (PACKS, vec![]));
    let report = gc_all(&world).await;
    assert_eq!((report.packs_in_use, report.packs_waiting, report.packs_removed), (PACKS, 0, 0));
    holds_the_cut(&volume).await;
    holds_the_cut(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap()).await;
}

/// A volume with a half uploaded cut, and the upload.
async fn half_uploaded(world: &World) -> (VolumeWriter, Upload) {
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let upload = Upload::default();
    volume.commit_on(LongCut::breaking(world, true), SIZE, &upload).await.unwrap_err();
    assert!(uploaded(&volume).await.len() > 1);
    (volume, upload)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_goes_on_with_packs_of_days_ago_that_a_manifest_kept() {
    let world = World::new();
    let (volume, upload) = half_uploaded(&world).await;
    let kept = uploaded(&volume).await;
    for _ in 0..9 {
        assert_eq!(gc_all(&world).await.packs_in_use, kept.len() as u64);
    }
    // Another change of the volume does not give the packs up.
    volume.release().await.unwrap();
    assert_eq!(uploaded(&volume).await, kept);
    volume.commit_on(LongCut::new(&world), SIZE, &upload).await.unwrap();
    let view = volume.view().await.unwrap();
    let listed: Vec<PackId> = view.manifest().packs.iter().map(|pack| pack.pack).collect();
    assert!(kept.iter().all(|pack| listed.contains(pack)) && uploaded(&volume).await.is_empty());
    gc_all(&world).await;
    holds_the_cut(&volume).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_of_an_upload_that_ended_with_its_process_are_collected_after_the_next_cut() {
    let world = World::new();
    let (volume, _) = half_uploaded(&world).await;
    let (kept, resume) = (uploaded(&volume).await, volume.state());
    drop(volume);
    let volume = world.daemon(1).volumes.resume(&resume);
    world.clock.advance(2 * UPLOAD_TIME_MAX);
    volume.commit(MemoryCut::new(10, &[(0, 8, 4)]), SIZE).await.unwrap();
    assert_eq!(uploaded(&volume).await, []);
    let report = gc_all(&world).await;
    assert!(report.packs_removed >= kept.len() as u64 && report.packs_in_use == 1, "{report:?}");
    tags(&volume, range(0, 8), &[4; 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_writer_that_uploads_keeps_packs_that_are_no_content() {
    let world = World::new();
    let (volume, _) = half_uploaded(&world).await;
    let before = volume.state();
    volume.snapshot(&name("s")).await.unwrap();
    let fork = volume.fork(&name("fork")).await.unwrap();
    assert_eq!(uploaded(&fork).await, []);
    let other = world.daemon(2);
    let point = StatePoint { volume: before.volume, snapshot: Some(name("s")) };
    assert_eq!(other.volumes.view(&point).await.unwrap().manifest().sections.uploaded, []);
    let taken = other.volumes.take_over(&name("vm")).await.unwrap();
    assert_eq!(uploaded(&taken).await, []);
    assert_eq!(gc_all(&world).await.packs_in_use, 0);
    for volume in [&fork, &taken] {
        tags(volume, range(0, 8), &[0; 8]).await;
    }
}

/// A keeping manifest is under way for days, and the first request afterwards fails.
#[tokio::test(flavor = "multi_thread")]
async fn packs_named_by_a_keeping_manifest_that_came_late_are_there() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let upload = Arc::new(Upload::default());
    world.objects.pause_before("manifests");
    let trying = tokio::spawn({
        let (volume, upload, cut) = (volume.clone(), Arc::clone(&upload), LongCut::new(&world));
        async move { volume.commit_on(cut, SIZE, &upload).await }
    });
    world.objects.paused().await;
    let report = gc_all(&world).await;
    assert_eq!(report.packs_removed, 0, "{report:?}");
    world.objects.refuse_to_list(Some("manifests"));
    world.objects.resume();
    trying.await.unwrap().unwrap_err();
    world.objects.refuse_to_list(None);
    volume.commit_on(LongCut::new(&world), SIZE, &upload).await.unwrap();
    holds_the_cut(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_does_not_wait_for_all_of_an_upload_of_hours() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
    }
    world.objects.pause_before("packs");
    let cut =
        LongCut { pack_time: Duration::from_mins(45), ..Arc::into_inner(LongCut::new(&world)).unwrap() };
    let committing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.commit(Arc::new(cut), SIZE).await }
    });
    world.objects.paused().await;
    // The packs after the first are made meanwhile.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let begun = world.clock.since_boot();
    let merging = tokio::spawn({
        let volume = volume.clone();
        async move { volume.compact().await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.objects.resume();
    committing.await.unwrap().unwrap();
    let merged = merging.await.unwrap();
    let waited = world.clock.since_boot().saturating_sub(begun);
    assert!(merged.is_ok(), "after {waited:?}: {merged:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_of_hours_takes_turns_and_holds_nothing_between_them() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let (cut, upload) = (LongCut::new(&world), Upload::default());
    let mut turns = 1;
    while volume.commit_turn(Arc::clone(&cut) as _, SIZE, &upload).await.unwrap().is_none() {
        // Others who wait for the volume have a turn.
        volume.snapshot(&name(&format!("after-{turns}"))).await.unwrap();
        turns += 1;
    }
    assert!(turns > 2, "{turns}");
    holds_the_cut(&volume).await;
    let snapshots = volume.snapshots().await.unwrap();
    assert_eq!(snapshots.len(), turns - 1);
}
