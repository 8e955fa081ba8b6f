//! Stores whose listings leave out existing objects.

use super::support::*;
use crate::store::clock::SystemClock;
use crate::store::gc::{self, GcOptions};
use crate::store::volume::VolumeError;

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
    assert!(matches!(found, Err(VolumeError::Fenced(fence)) if fence == other.writer()), "{found:?}");
}
