//! Packs that one try to write a cut back leaves for the next.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::*;
use crate::store::BoxError;
use crate::store::format::fuzzing::sample_manifest;
use crate::store::format::{Manifest, PACK_BYTES_TARGET, PackOptions, PackRef};
use crate::store::ids::{PackId, VolumeId};
use crate::store::key::Folder;
use crate::store::volume::commit::packing::{ContentHash, CutContent, Packing};
use crate::store::volume::commit::upload::{Span, Upload};
use crate::store::volume::writer::new_packs::NewPack;
use crate::store::volume::{CutExtent, CutSource, UploadProgress, VolumeWriter};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

pub const SIZE: u64 = 1 << 21;
pub const SECTORS: u64 = (2 * PACK_BYTES_TARGET + (5 << 20)) / SECTOR_BYTES;

/// A cut of three packs.
pub fn cut() -> Arc<BigCut> {
    Arc::new(BigCut(vec![CutExtent { range: range(8, SECTORS), seq: Seq(9), zero: false }]))
}

fn pack(number: u8) -> PackRef {
    PackRef {
        volume: VolumeId([1; 16]),
        pack: PackId([number; 16]),
        total_bytes: 4096,
        index_offset_bytes: 1024,
        index_stored_bytes: 512,
        index_plain_bytes: 512,
        index_hash: [0; 16],
        lowest_sector: u64::from(number),
        highest_sector: u64::from(number) + 9,
        level: 0,
        data_bytes: 512,
        entries: 1,
    }
}

/// Ten sectors in a pack whose upload began `hours` after the start.
fn span(from: u8, hours: u64) -> Span {
    let (pack, from) = (pack(from), u64::from(from));
    Span {
        from,
        to: from + 10,
        lost: Vec::new(),
        data_bytes: 10 * SECTOR_BYTES,
        new: NewPack { pack, begun: Duration::from_hours(hours), after: 0 },
    }
}

fn options() -> PackOptions {
    PackOptions {
        volume: VolumeId([1; 16]),
        pack: PackId([2; 16]),
        level: 0,
        first_seq: Seq(9),
        last_seq: Seq(9),
    }
}

pub async fn holds(volume: &VolumeWriter, first: u64, last: u64) {
    for start in [first, 65_530, last - 100] {
        let expected: Vec<Tag> = (start..start + 100).map(|at| 2 * at + 1).collect();
        tags(volume, range(start, 100), &expected).await;
    }
}

pub async fn holds_the_cut(volume: &VolumeWriter) {
    holds(volume, 8, SECTORS).await;
    tags(volume, range(SECTORS + 7, 2), &[2 * (SECTORS + 7) + 1, 0]).await;
}

/// A volume and the upload of `cut`, which has three packs: the try stopped after the second pack.
pub async fn begun(cut: Arc<dyn CutSource>) -> (World, Daemon, VolumeWriter, Upload) {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let upload = Upload::default();
    world.objects.end_after(2, false);
    volume.commit_on(cut, SIZE, &upload).await.unwrap_err();
    (world, daemon, volume, upload)
}

#[tokio::test]
async fn packs_of_a_cut_that_failed_are_not_uploaded_again() {
    let (world, daemon, volume, upload) = begun(cut()).await;
    let UploadProgress { total_bytes, uploaded_bytes } = upload.progress();
    assert_eq!(total_bytes, SECTORS * SECTOR_BYTES);
    assert!((1..total_bytes).contains(&uploaded_bytes), "{uploaded_bytes}");
    assert!(world.objects.go_on());
    let before = daemon.requests();
    let committed = volume.commit_on(cut(), SIZE, &upload).await.unwrap();
    assert_eq!(
        (committed.crowd.packs, daemon.since(before)),
        (3, [0, 2, 0, 0, 0]),
        "a pack and the manifest"
    );
    assert_eq!(upload.progress().uploaded_bytes, total_bytes);
    holds_the_cut(&volume).await;
    // And on another host.
    let other = world.daemon(2);
    holds_the_cut(&other.volumes.take_over(&name("vm")).await.unwrap()).await;
}

#[tokio::test]
async fn through_a_store_that_fails_every_third_time_no_byte_of_a_cut_is_stored_twice() {
    // Of six creations, the third pack's and the first manifest's fail.
    let (world, daemon, volume, upload) = begun(cut()).await;
    assert!(world.objects.go_on());
    world.objects.fail_creations("manifests", 1, false);
    volume.commit_on(cut(), SIZE, &upload).await.unwrap_err();
    let UploadProgress { total_bytes, uploaded_bytes } = upload.progress();
    assert_eq!(uploaded_bytes, total_bytes);
    volume.commit_on(cut(), SIZE, &upload).await.unwrap();
    let stored = daemon.volumes.store().list(Folder::Packs(volume.id()), None).await.unwrap();
    let stored_bytes: u64 = stored.iter().map(|object| object.bytes).sum();
    let view = volume.view().await.unwrap();
    let listed_bytes: u64 = view.manifest().packs.iter().map(|pack| pack.total_bytes).sum();
    assert_eq!((stored.len(), stored_bytes), (view.manifest().packs.len(), listed_bytes));
    holds_the_cut(&volume).await;
}

#[tokio::test]
async fn a_manifest_whose_answer_was_lost_lists_its_packs_once_after_the_next_try() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let upload = Upload::default();
    world.objects.end_after(3, true);
    volume.commit_on(cut(), SIZE, &upload).await.unwrap_err();
    assert!(world.objects.go_on());
    world.clock.advance(Duration::from_secs(1));
    volume.commit_on(cut(), SIZE, &upload).await.unwrap();
    assert_eq!(volume.view().await.unwrap().manifest().packs.len(), 3);
    holds_the_cut(&volume).await;
}

#[test]
fn what_an_upload_keeps_is_of_the_same_cut_and_young() {
    let content = |extents: &[CutExtent], zero_from| -> ContentHash {
        CutContent { cut: Arc::new(BigCut(extents.to_vec())), zero_from }.hash()
    };
    let extent = |start, count, seq| CutExtent { range: range(start, count), seq: Seq(seq), zero: false };
    let whole = content(&[extent(0, 30, 5)], None);
    let mut base = sample_manifest();
    let kept = |base: &Manifest, upload: &Upload, content, hours| -> Vec<u64> {
        let spans = upload.begin(content, 1 << 20, Duration::from_hours(hours), base);
        spans.iter().map(|span| span.from).collect()
    };
    let upload = Upload::default();
    assert_eq!(kept(&base, &upload, whole, 0), [0; 0]);
    for span in [span(20, 1), span(0, 2), span(10, 0)] {
        upload.add(span);
    }
    assert_eq!(kept(&base, &upload, whole, 1), [0, 10, 20]);
    let split = content(&[extent(0, 12, 5), extent(12, 18, 5)], None);
    assert_eq!(kept(&base, &upload, split, 2), [0, 20], "the same, but one is too old");
    base.sections.uploaded = vec![pack(20).pack];
    assert_eq!(
        kept(&base, &upload, split, 9),
        [20],
        "all are too old, and one is kept by the newest manifest"
    );
    for other in [
        content(&[extent(0, 30, 5)], Some(30)),
        content(&[extent(0, 29, 5)], None),
        content(&[extent(0, 10, 5), extent(11, 19, 5)], None),
        content(&[extent(0, 10, 5), extent(10, 20, 6)], None),
        content(&[CutExtent { zero: true, ..extent(0, 30, 5) }], None),
    ] {
        upload.add(span(0, 2));
        assert_eq!(kept(&base, &upload, other, 2), [0; 0], "another cut");
    }
}

#[tokio::test]
async fn packs_of_another_cut_or_of_long_ago_are_not_listed() {
    for (hours, extents) in [(0, vec![(0, SECTORS - 4), (SECTORS, 8)]), (2, vec![(8, SECTORS)])] {
        let (world, _daemon, volume, upload) = begun(cut()).await;
        assert!(world.objects.go_on() && upload.progress().uploaded_bytes > 0);
        let old: Vec<_> = upload.uploads().packs().copied().collect();
        world.clock.advance(Duration::from_hours(hours));
        let extents = extents.into_iter().map(|(start, count)| CutExtent {
            range: range(start, count),
            seq: Seq(9),
            zero: false,
        });
        volume.commit_on(Arc::new(BigCut(extents.collect())), SIZE, &upload).await.unwrap();
        let view = volume.view().await.unwrap();
        let listed = &view.manifest().packs;
        assert_eq!(listed.len(), 3);
        assert!(old.iter().all(|old| listed.iter().all(|pack| pack.pack != old.pack)));
        holds(&volume, 8, SECTORS - 12).await;
    }
}

/// Records which sectors are read.
#[derive(Debug)]
struct WatchedCut(Vec<CutExtent>, Mutex<Vec<u64>>);

impl CutSource for WatchedCut {
    fn seq(&self) -> Seq {
        Seq(9)
    }

    fn extents(&self) -> &[CutExtent] {
        &self.0
    }

    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        self.1.lock().unwrap().extend(range.start()..range.end());
        buffer.fill(1);
        Ok(())
    }
}

#[test]
fn a_try_packs_exactly_what_earlier_ones_left() {
    const SECTORS: u64 = 12;
    let extent = |start, count, zero| CutExtent { range: range(start, count), seq: Seq(9), zero };
    let extents = [extent(1, 3, false), extent(4, 1, true), extent(6, 2, false), extent(9, 1, false)];
    let in_data = |at: &u64| extents.iter().any(|e| !e.zero && (e.range.start()..e.range.end()).contains(at));
    for kept in (0_u64..1 << SECTORS).step_by(5) {
        let is_kept = |at: u64| at < SECTORS && kept & (1 << at) != 0;
        let spans: Vec<Span> = (0..SECTORS)
            .filter(|at| is_kept(*at))
            .map(|at| Span {
                from: at,
                to: at + 1,
                data_bytes: u64::from(in_data(&at)) * SECTOR_BYTES,
                ..span(0, 0)
            })
            .collect();
        let cut = Arc::new(WatchedCut(extents.to_vec(), Mutex::default()));
        let mut packing = Packing::new(CutContent { cut: cut.clone(), zero_from: Some(11) }, &spans);
        let mut packed = Vec::new();
        while let (Some(pack), rest) = packing.next_pack(options()).unwrap() {
            packed.push(pack);
            packing = rest;
        }
        let expected: Vec<u64> = (0..SECTORS).filter(|at| in_data(at) && !is_kept(*at)).collect();
        assert_eq!(*cut.1.lock().unwrap(), expected, "{kept:b}");
        let data_bytes: u64 = packed.iter().map(|pack| pack.data_bytes).sum();
        assert_eq!(data_bytes, expected.len() as u64 * SECTOR_BYTES);
        for at in [1, 2, 3, 4, 6, 7, 9, 11, 12, u64::MAX - 1] {
            let times = packed.iter().filter(|pack| pack.sectors.contains(&at)).count();
            assert_eq!(times, usize::from(!is_kept(at)), "sector {at} of {kept:b}");
        }
        for pack in &packed {
            assert!(pack.sectors.start <= pack.pack.pack.lowest_sector);
            assert!(pack.pack.pack.highest_sector < pack.sectors.end);
        }
    }
}
