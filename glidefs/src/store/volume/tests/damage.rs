//! Damaged sectors: an error in every state that has the damage, until the sectors are written.

use std::sync::Arc;

use super::support::*;
use crate::store::format::DAMAGED_RANGES_MAX;
use crate::store::gc::{GcOptions, collect};
use crate::store::volume::{CutExtent, CutSource, GRACE_MIN, StatePoint, VolumeError, VolumeWriter};
use crate::units::{SectorRange, Seq};

const SIZE: u64 = 1 << 12;
/// Content of the first 64 sectors after [`damaged`].
const EXPECTED: [Tag; 64] = {
    let mut tags = [1; 64];
    tags[8] = LOST;
    tags[9] = LOST;
    tags[30] = LOST;
    let mut at = 40;
    while at < 64 {
        tags[at] = 0;
        at += 1;
    }
    tags
};

/// A volume with damage in sectors 8, 9 and 30, over older data.
async fn damaged(daemon: &Daemon) -> VolumeWriter {
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 40, 1)]), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(8, 2, LOST), (30, 1, LOST)]), SIZE).await.unwrap();
    volume
}

async fn is_as_expected(volume: &VolumeWriter) {
    tags(volume, range(0, 64), &EXPECTED).await;
    assert_eq!(volume.damaged_sectors(), 3);
}

#[tokio::test]
async fn damaged_sectors_fail_and_nothing_else_does_until_they_are_written() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = damaged(&daemon).await;
    is_as_expected(&volume).await;
    // Damage in a sector that no pack has.
    volume.commit(MemoryCut::new(3, &[(4000, 1, LOST)]), SIZE).await.unwrap();
    assert!(volume.covers(range(3990, 11)) && !volume.covers(range(3990, 10)));
    tags(&volume, range(3999, 3), &[0, LOST, 0]).await;
    // A reader of other sectors gets these.
    let parts = [range(0, 8), range(10, 2)];
    let bytes = volume.read_waiting(range(0, 12), &parts).await.unwrap();
    compare(range(0, 8), &bytes[..8 * 512], &[1; 8]);
    // Sector 8 is written, sector 30 is zeroed, sector 9 stays damaged.
    volume.commit(MemoryCut::new(4, &[(0, 9, 7), (30, 1, 0)]), SIZE).await.unwrap();
    tags(&volume, range(7, 4), &[7, 7, LOST, 1]).await;
    tags(&volume, range(30, 1), &[0]).await;
    assert_eq!(volume.damaged_sectors(), 2);
    // Sectors cut off by a smaller size are zero when the volume grows again.
    volume.commit(MemoryCut::new(5, &[]), 4000).await.unwrap();
    volume.commit(MemoryCut::new(6, &[(9, 1, 8)]), SIZE).await.unwrap();
    tags(&volume, range(4000, 1), &[0]).await;
    assert_eq!(volume.damaged_sectors(), 0);
}

#[tokio::test]
async fn another_host_finds_the_same_damage_and_mends_it_by_writing() {
    let world = World::new();
    let volume = damaged(&world.daemon(1)).await;
    volume.release().await.unwrap();
    let opened = world.daemon(2).volumes.open(&name("vm")).await.unwrap();
    is_as_expected(&opened).await;
    let taken = world.daemon(3).volumes.take_over(&name("vm")).await.unwrap();
    is_as_expected(&taken).await;
    taken.commit(MemoryCut::new(3, &[(8, 2, 5), (30, 1, 6)]), SIZE).await.unwrap();
    let last = world.daemon(4).volumes.take_over(&name("vm")).await.unwrap();
    tags(&last, range(7, 4), &[1, 5, 5, 1]).await;
    tags(&last, range(30, 1), &[6]).await;
}

#[tokio::test]
async fn a_restart_knows_how_much_is_damaged_without_a_request() {
    let world = World::new();
    let state = damaged(&world.daemon(1)).await.state();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.resume(&crate::store::volume::Resume { manifest: None, ..state });
    assert_eq!((volume.damaged_sectors(), daemon.requests()), (3, [0; 5]));
    is_as_expected(&volume).await;
}

#[tokio::test]
async fn snapshots_forks_and_what_goes_back_to_them_have_the_damage_of_their_state() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = damaged(&daemon).await;
    volume.snapshot(&name("bad")).await.unwrap();
    let fork = volume.fork(&name("fork")).await.unwrap();
    is_as_expected(&fork).await;
    is_as_expected(&volume.fork_known(&name("known"), None).await.unwrap()).await;
    // The origin is repaired; the forks and snapshots made before are not.
    volume.commit(MemoryCut::new(3, &[(8, 2, 5), (30, 1, 6)]), SIZE).await.unwrap();
    volume.snapshot(&name("good")).await.unwrap();
    is_as_expected(&fork).await;
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("bad")) };
    is_as_expected(&world.daemon(2).volumes.fork(&point, &name("old")).await.unwrap()).await;
    let view = world.daemon(2).volumes.view(&point).await.unwrap();
    assert!(
        matches!(view.read(range(0, 64)).await, Err(VolumeError::Damaged { range: at }) if at == range(8, 2))
    );
    volume.rollback(&name("bad")).await.unwrap();
    is_as_expected(&volume).await;
    volume.rollback(&name("good")).await.unwrap();
    tags(&volume, range(7, 4), &[1, 5, 5, 1]).await;
    assert_eq!(volume.damaged_sectors(), 0);
    fork.delete().await.unwrap();
    is_as_expected(&daemon.volumes.undelete(&name("fork"), &name("back")).await.unwrap()).await;
}

#[tokio::test]
async fn merging_and_garbage_collection_bring_nothing_old_back_under_damage() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = damaged(&daemon).await;
    let mut steps = 0;
    for seq in 3..40 {
        volume.commit(MemoryCut::new(seq, &[(100 + seq, 1, seq)]), SIZE).await.unwrap();
        let mut packs = volume.crowd().unwrap().packs;
        while let Some(compacted) = volume.compact().await.unwrap() {
            assert!(compacted.crowd.packs < packs);
            packs = compacted.crowd.packs;
            steps += 1;
        }
    }
    assert!(steps > 0, "nothing was merged");
    is_as_expected(&volume).await;
    volume.release().await.unwrap();
    world.clock.advance(2 * GRACE_MIN);
    let options = GcOptions { grace: GRACE_MIN, ..GcOptions::default() };
    let mut removed = 0;
    for _ in 0..3 {
        removed += collect(daemon.volumes.store(), &*world.clock, &options).await.unwrap().packs_removed;
        world.clock.advance(2 * GRACE_MIN);
    }
    assert!(removed > 0, "nothing was collected");
    let other = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    is_as_expected(&other).await;
}

/// A cut of damage only: every other sector.
struct Sieve(u64);

impl CutSource for Sieve {
    fn seq(&self) -> Seq {
        Seq(9)
    }

    fn extents(&self) -> &[CutExtent] {
        &[]
    }

    fn read(&self, _: SectorRange, _: &mut [u8]) -> Result<(), crate::store::error::BoxError> {
        Err("there is nothing to read".into())
    }

    fn damaged(&self) -> Vec<SectorRange> {
        (0..self.0).map(|at| range(2 * at, 1)).collect()
    }
}

#[tokio::test]
async fn damage_in_more_places_than_a_manifest_lists_is_refused_and_nothing_whole_is_given_up() {
    let world = World::new();
    let daemon = world.daemon(1);
    let (most, size) = (DAMAGED_RANGES_MAX as u64, 1 << 20);
    let volume = daemon.volumes.create(&name("vm"), size).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), size).await.unwrap();
    let before = daemon.requests();
    let error = volume.commit(Arc::new(Sieve(most + 1)), size).await.unwrap_err();
    assert!(matches!(error, VolumeError::TooDamaged { runs } if runs as u64 == most + 1), "{error}");
    assert!(!error.is_fatal() && error.to_string().contains("discard them"), "{error}");
    assert_eq!(daemon.since(before), [0; 5]);
    tags(&volume, range(0, 9), &[1, 1, 1, 1, 1, 1, 1, 1, 0]).await;
    volume.commit(Arc::new(Sieve(most)), size).await.unwrap();
    assert_eq!(volume.damaged_sectors(), most);
    let other = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    tags(&other, range(0, 4), &[LOST, 1, LOST, 1]).await;
}
