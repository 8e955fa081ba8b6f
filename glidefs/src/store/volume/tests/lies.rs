//! Stores whose listings leave out existing objects, and manifests and packs that were forged in the bucket.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use super::support::*;
use crate::store::client::Created;
use crate::store::clock::SystemClock;
use crate::store::error::StoreError;
use crate::store::format::fuzzing::{forged, sample_manifest};
use crate::store::format::{
    ENTRIES_MAX, EncodedPack, Manifest, PackBuilder, PackIndex, PackOptions, PackRef, TRAILER_BYTES,
};
use crate::store::gc::{self, GcOptions};
use crate::store::ids::{PackId, VolumeId};
use crate::store::key::Key;
use crate::store::volume::compact::merge::Merge;
use crate::store::volume::compact::plan::{MergeLimits, WINDOWS_BYTES_MAX, everything};
use crate::store::volume::{VolumeError, VolumeWriter};
use crate::units::Seq;

const SIZE: u64 = 1 << 16;

#[tokio::test]
async fn a_name_is_not_given_again_because_a_listing_does_not_show_its_volume() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..5 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    // All manifests but the first and the newest are removed.
    world.advance_hours(30);
    gc::collect(daemon.volumes.store(), &SystemClock, &GcOptions::default()).await.unwrap();
    world.objects.list_without(Some("manifests"));
    let taken = world.daemon(2).volumes.create(&name("vm"), SIZE).await;
    assert!(matches!(taken, Err(VolumeError::NameTaken { .. })), "{taken:?}");
    world.objects.list_without(None);
    volume.commit(MemoryCut::new(5, &[(8, 8, 5)]), SIZE).await.unwrap();
    tags(&volume, range(0, 16), &[[4; 8], [5; 8]].concat()).await;
}

#[tokio::test]
async fn a_volume_that_a_listing_does_not_show_is_not_taken_for_deleted() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.objects.list_without(Some("manifests"));
    volume.confirm().await.unwrap();
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    tags(&volume, range(0, 8), &[2; 8]).await;
}

#[tokio::test]
async fn another_writer_is_found_though_a_listing_does_not_show_its_manifest() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let other = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    world.objects.list_without(Some("manifests"));
    let found = volume.confirm().await;
    assert!(
        matches!(found, Err(VolumeError::Fenced(ref taker)) if taker.fence == other.writer()),
        "{found:?}"
    );
}

/// Creates the manifest after the newest one of volume `of`, changed by `change`.
async fn forge(world: &World, of: &str, change: impl FnOnce(Manifest) -> Manifest) {
    let store = world.daemon(9).volumes.store().clone();
    let volume = store.name(&name(of)).await.unwrap().unwrap().volume;
    let newest = store.latest_manifest(volume, None).await.unwrap().unwrap();
    let manifest = change(Manifest { number: newest.number + 1, ..newest });
    let key = Key::Manifest(volume, manifest.number);
    assert_eq!(store.create(&key, &[forged(&manifest).into()]).await.unwrap(), Created::Created);
}

fn is_refused<T: std::fmt::Debug>(result: &Result<T, VolumeError>) -> bool {
    matches!(result, Err(VolumeError::Store(error)) if matches!(**error, StoreError::Damaged { .. }))
}

#[tokio::test]
async fn a_forged_manifest_costs_its_volume_and_no_other() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let other = daemon.volumes.create(&name("other"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    forge(&world, "vm", |manifest| Manifest { cut: Seq(u64::MAX), ..manifest }).await;
    let taken = world.daemon(2).volumes.take_over(&name("vm")).await;
    assert!(is_refused(&taken), "{taken:?}");
    let error: &dyn std::error::Error = &taken.unwrap_err();
    let text = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    assert!(text.collect::<String>().contains("impossible contents: epoch, size, cut, date or origin"));
    // The writer does not take it for the answer to one of its own requests, and goes on reading.
    assert!(is_refused(&volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await));
    tags(&volume, range(0, 8), &[1; 8]).await;
    other.commit(MemoryCut::new(1, &[(0, 8, 3)]), SIZE).await.unwrap();
    let other = world.daemon(2).volumes.take_over(&name("other")).await.unwrap();
    tags(&other, range(0, 8), &[3; 8]).await;
}

/// Eight indexes of 256 MiB each would be fetched at once.
#[tokio::test]
async fn an_index_that_is_said_to_be_long_is_not_fetched() {
    let world = World::new();
    world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    forge(&world, "vm", |manifest| {
        let pack = sample_manifest().packs[0];
        let index_stored_bytes = 256 << 20;
        let total_bytes = pack.index_offset_bytes + u64::from(index_stored_bytes) + TRAILER_BYTES as u64;
        Manifest { packs: vec![PackRef { total_bytes, index_stored_bytes, ..pack }; 8], ..manifest }
    })
    .await;
    let daemon = world.daemon(2);
    assert!(is_refused(&daemon.volumes.take_over(&name("vm")).await));
    let bytes = daemon.stats.of(crate::store::stats::Operation::Get).bytes.get();
    assert!(bytes < 10_000, "{bytes} bytes were fetched");
}

#[tokio::test]
async fn a_volume_that_names_a_pack_of_another_one_falsely_gives_that_pack_no_index() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let other = daemon.volumes.create(&name("other"), SIZE).await.unwrap();
    other.commit(MemoryCut::new(1, &[(0, 8, 3)]), SIZE).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let pack = store.latest_manifest(other.id(), None).await.unwrap().unwrap().packs[0].pack;
    forge(&world, "vm", |manifest| Manifest {
        packs: vec![PackRef { pack, ..manifest.packs[0] }],
        ..manifest
    })
    .await;
    let own = volume.state().volume;
    let newest = store.latest_manifest(own, None).await.unwrap().unwrap();
    let real = store.manifest(own, newest.number - 1).await.unwrap().packs[0].pack;
    let bytes = store.get(&Key::Pack(own, real), 1 << 20).await.unwrap();
    assert_eq!(store.create(&Key::Pack(own, pack), &[bytes]).await.unwrap(), Created::Created);
    let daemon = world.daemon(2);
    let (volume, other) = (
        daemon.volumes.take_over(&name("vm")).await.unwrap(),
        daemon.volumes.take_over(&name("other")).await.unwrap(),
    );
    tags(&volume, range(0, 8), &[1; 8]).await;
    tags(&other, range(0, 8), &[3; 8]).await;
}

/// A volume that lists `count` packs, each of nothing but zeroes in every second of its first sectors: some KiB in the bucket, and the
/// longest possible index in memory. Returns it taken over by another host, and one of the packs.
async fn with_long_indexes(world: &World, count: u8) -> (VolumeWriter, PackRef) {
    world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let mut builder = PackBuilder::new(PackOptions {
        volume: VolumeId([7; 16]),
        pack: PackId([7; 16]),
        level: 0,
        first_seq: Seq(1),
        last_seq: Seq(1),
    })
    .unwrap();
    // A builder leaves room for three entries.
    (0..ENTRIES_MAX as u64 - 3).for_each(|at| builder.push_zero(range(2 * at, 1)).unwrap());
    let EncodedPack { parts, pack: first } = builder.finish().unwrap();
    let bytes = Bytes::from(parts.concat());
    assert!(bytes.len() < 20_000, "{} bytes", bytes.len());
    let pack = |number| PackRef { pack: PackId([number; 16]), ..first };
    let packs: Vec<PackRef> = (0..count).map(pack).collect();
    let store = world.daemon(9).volumes.store().clone();
    for PackRef { volume, pack, .. } in &packs {
        let created = store.create(&Key::Pack(*volume, *pack), std::slice::from_ref(&bytes)).await;
        assert_eq!(created.unwrap(), Created::Created);
    }
    forge(world, "vm", |manifest| Manifest { packs, size_sectors: 4 * ENTRIES_MAX as u64, ..manifest }).await;
    (world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), first)
}

/// Together 640 MiB of indexes: of these the cache keeps 64 MiB, and 64 MiB and one more may be on their way.
#[tokio::test]
async fn a_read_and_a_merge_of_packs_with_long_indexes_hold_few_of_these() {
    const PACKS: u8 = 16;
    let (volume, pack) = with_long_indexes(&World::new(), PACKS).await;
    let metadata = &volume.host.reader.metadata;
    let index_bytes_max = (128 << 20) + usize::try_from(PackIndex::load_bytes(&pack)).unwrap();
    // No pack has the second sector, so each is looked at.
    tags(&volume, range(1, 1), &[0]).await;
    let most = metadata.most_index_bytes();
    assert!((1..=index_bytes_max).contains(&most), "{most} bytes of indexes");
    let manifest = volume.manifest().await.unwrap();
    assert_eq!(manifest.packs.len(), usize::from(PACKS));
    let step = everything(&manifest.packs);
    let mut merge = Merge::new(volume.clone(), &manifest, &step, &MergeLimits::USUAL);
    for _ in 0..3 {
        let bytes = merge.look_on().await.unwrap();
        assert!((WINDOWS_BYTES_MAX / 2..=WINDOWS_BYTES_MAX + 10_000).contains(&bytes), "{bytes} bytes");
    }
    assert!(merge.at > 100);
    let most = metadata.most_index_bytes();
    assert!(most <= index_bytes_max, "{most} bytes of indexes");
}

#[tokio::test(start_paused = true)]
async fn a_merge_takes_memory_for_its_indexes() {
    const MIB: u64 = 1 << 20;
    for (count, indexes) in [(1, 40), (3, 64)] {
        let world = World::new();
        let (volume, _) = with_long_indexes(&world, count).await;
        let manifest = volume.manifest().await.unwrap();
        let step = everything(&manifest.packs);
        let mut merge = Merge::new(volume.clone(), &manifest, &step, &MergeLimits::USUAL);
        world.objects.read_for(3_600_000);
        let mut run = merge.run().boxed();
        assert!(tokio::time::timeout(Duration::from_millis(10), &mut run).await.is_err());
        let upload_bytes = volume.host.upload_bytes();
        // A batch, the pack being made, and the indexes.
        assert!(
            (32 + 32 + indexes - 1..=32 + 32 + indexes).contains(&(upload_bytes / MIB)),
            "{upload_bytes}"
        );
    }
}
