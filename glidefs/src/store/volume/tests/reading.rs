//! Reads of packs: requests shared and joined, newer packs over older ones, indexes in memory, damaged packs.

use futures_util::future::join_all;

use super::support::*;
use crate::store::backend::Backend;
use crate::store::client::Created;
use crate::store::error::StoreError;
use crate::store::format::BLOCK_SECTORS_MAX;
use crate::store::key::Key;
use crate::store::volume::{Resume, VolumeError};
use crate::units::Seq;

const SIZE: u64 = 1 << 21;

#[tokio::test]
async fn requests_are_as_few_as_promised() {
    let world = World::new();
    let daemon = world.daemon(1);
    let before = daemon.requests();
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    assert_eq!(daemon.since(before), [1, 2, 0, 0, 0], "create");
    let before = daemon.requests();
    let committed = volume.commit(MemoryCut::new(1, &[(0, 512, 1), (2000, 8, 2)]), SIZE).await.unwrap();
    assert_eq!(daemon.since(before), [0, 2, 0, 0, 0], "commit");
    let before = daemon.requests();
    tags(&volume, range(0, 1), &[1]).await;
    assert_eq!(daemon.since(before), [2, 0, 0, 0, 0], "read with a cold index");
    let before = daemon.requests();
    tags(&volume, range(3, 2), &[1; 2]).await;
    assert_eq!(daemon.since(before), [1, 0, 0, 0, 0], "read");
    let before = daemon.requests();
    tags(&volume, range(100, 200), &[1; 200]).await;
    assert_eq!(daemon.since(before), [1, 0, 0, 0, 0], "read of neighbouring blocks");
    let before = daemon.requests();
    tags(&volume, range(1000, 200), &[0; 200]).await;
    assert_eq!(daemon.since(before), [0; 5], "read of what nobody wrote");
    let same = volume.commit(MemoryCut::new(1, &[]), SIZE).await.unwrap();
    assert_eq!(same.resume, committed.resume);
    assert_eq!(daemon.since(before), [0; 5], "commit of nothing");

    for (manifest, gets) in [(None, 3), (committed.resume.manifest.clone(), 2)] {
        let again = world.daemon(1);
        let volume = again.volumes.resume(&Resume { manifest, ..committed.resume.clone() });
        assert_eq!((volume.cut(), volume.size_sectors()), (Seq(1), SIZE));
        assert_eq!(again.requests(), [0; 5], "an idle volume");
        tags(&volume, range(2000, 1), &[2]).await;
        assert_eq!(again.requests(), [gets, 0, 0, 0, 0], "first read after a restart");
    }
    let again = world.daemon(1);
    let volume = again.volumes.resume(&committed.resume);
    volume.commit(MemoryCut::new(2, &[(9, 1, 7)]), SIZE).await.unwrap();
    assert_eq!(again.requests(), [0, 2, 1, 0, 0], "first commit after a restart");
    let other = world.daemon(2);
    other.volumes.take_over(&name("vm")).await.unwrap();
    assert_eq!(other.requests(), [3, 2, 2, 0, 0], "open on another host");
}

#[tokio::test(start_paused = true)]
async fn readers_of_the_same_blocks_share_one_request() {
    let world = World::new();
    world.objects.read_for(10);
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 1024, 1)]), SIZE).await.unwrap();
    let again = world.daemon(1);
    let volume = again.volumes.resume(&Resume { manifest: None, ..volume.state() });
    let readers = (0..32).map(|reader| {
        let volume = volume.clone();
        tokio::spawn(async move { tags(&volume, range(reader * 4, 4), &[1; 4]).await })
    });
    join_all(readers).await.into_iter().for_each(|reader| reader.unwrap());
    assert_eq!(again.requests(), [3, 0, 0, 0, 0]);
    // Neighbours of a block under way are fetched without that block.
    let before = again.requests();
    let (first, second) = tokio::join!(volume.read(range(0, 256)), volume.read(range(128, 256)));
    assert_eq!((first.unwrap().len(), second.unwrap().len()), (128 << 10, 128 << 10));
    assert_eq!(again.since(before), [2, 0, 0, 0, 0]);
    // A reader that gives up does not make the others fail.
    let before = again.requests();
    let mut impatient = Box::pin(volume.read(range(0, 8)));
    assert!(futures_util::poll!(&mut impatient).is_pending());
    let patient = tokio::spawn({
        let volume = volume.clone();
        async move { tags(&volume, range(8, 8), &[1; 8]).await }
    });
    tokio::task::yield_now().await;
    drop(impatient);
    patient.await.unwrap();
    assert_eq!(again.since(before)[0], 1);
}

#[tokio::test]
async fn what_lies_between_two_blocks_is_read_through_where_it_is_little() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let block = BLOCK_SECTORS_MAX;
    // No two sectors are the same, so nothing is compressed.
    let cut = |seq: u64, blocks: &[u64]| {
        let sectors = blocks.iter().flat_map(|at| at * block..(at + 1) * block);
        let tags = sectors.map(|at| (at, seq << 16 | at << 1 | 1)).collect();
        MemoryCut::of(seq, &tags)
    };
    volume.commit(cut(1, &[0, 1, 2, 3, 4, 5, 6, 7]), SIZE).await.unwrap();
    volume.commit(cut(2, &[1, 4, 5, 6]), SIZE).await.unwrap();
    volume.read(range(0, 8 * block)).await.unwrap();
    let before = daemon.requests();
    let expected: Vec<Tag> = (0..8 * block)
        .map(|at| {
            let seq = if [1, 4, 5, 6].contains(&(at / block)) { 2 } else { 1 };
            seq << 16 | at << 1 | 1
        })
        .collect();
    tags(&volume, range(0, 8 * block), &expected).await;
    // The newer pack in one piece; the older one with a gap of one block, and then of three.
    assert_eq!(daemon.since(before), [3, 0, 0, 0, 0]);
}

#[tokio::test]
async fn zeroes_are_told_from_data_and_newer_packs_cover_older_ones() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let block = BLOCK_SECTORS_MAX;
    volume.commit(MemoryCut::new(1, &[(0, 6 * block, 1)]), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(3 * block, 8, 4), (7 * block, 8, 4)]), SIZE).await.unwrap();
    let is_four = |at: u64| [3 * block, 7 * block].iter().any(|four| (*four..four + 8).contains(&at));
    let content = |at: u64| if is_four(at) { 4 } else { Tag::from(at < 6 * block) };
    let expected: Vec<Tag> = (8..8 * block + 8).map(content).collect();
    tags(&volume, range(8, 8 * block), &expected).await;
    let data = [range(8, 6 * block - 8), range(7 * block, 8)];
    assert_eq!(volume.mapped(range(8, 8 * block)).await.unwrap(), data);
    assert_eq!(volume.read(range(20, 0)).await.unwrap(), Vec::<u8>::new());
}

#[tokio::test]
async fn metadata_stays_within_its_bound_and_comes_back_when_it_is_needed() {
    let world = World::new();
    let backend = Backend::over(world.objects.clone(), true);
    let daemon = world.daemon_over(1, backend, 4000);
    let mut volumes = Vec::new();
    for number in 0..30 {
        let volume = daemon.volumes.create(&name(&format!("vm{number}")), SIZE).await.unwrap();
        volume.commit(MemoryCut::new(1, &[(number, 8, number + 1), (2000, 8, 1)]), SIZE).await.unwrap();
        volumes.push(volume);
    }
    for (number, volume) in (0..).zip(&volumes) {
        tags(volume, range(number, 8), &[number + 1; 8]).await;
        assert!(daemon.volumes.metadata_bytes() <= 4000);
    }
    assert!(daemon.volumes.metadata_bytes() > 2000);
    for (number, volume) in (0..).zip(&volumes) {
        volume.commit(MemoryCut::new(2, &[(number, 1, 77)]), SIZE).await.unwrap();
        tags(volume, range(number, 1), &[77]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_is_damaged_is_an_error_and_not_zeroes() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let pack = volume.view().await.unwrap().manifest().packs[0];
    let store = daemon.volumes.store();
    let key = Key::Pack(pack.volume, pack.pack);
    let mut bytes = store.get(&key, 1 << 20).await.unwrap().to_vec();
    store.delete(std::slice::from_ref(&key)).await.unwrap();
    let error = volume.read(range(0, 8)).await.unwrap_err();
    assert!(matches!(&error, VolumeError::Store(error) if error.is_missing()), "{error}");
    bytes[60] ^= 1;
    assert_eq!(store.create(&key, &[bytes.into()]).await.unwrap(), Created::Created);
    let error = volume.read(range(0, 8)).await.unwrap_err();
    assert!(matches!(&error, VolumeError::Store(error) if matches!(**error, StoreError::Damaged { .. })));
    tags(&volume, range(8, 8), &[0; 8]).await;
}
