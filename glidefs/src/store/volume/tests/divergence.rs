//! A writer and the store with two histories: copies of a host, hosts and stores that were restored.

use std::sync::Arc;

use super::support::*;
use crate::store::ids::WriterId;
use crate::store::key::Key;
use crate::store::volume::{Fence, Loss, Notes, NotesInMemory, Resume, StatePoint, Volume, VolumeError};
use crate::units::Seq;

const SIZE: u64 = 1 << 21;

async fn commit(volume: &Volume, seq: u64, tag: Tag) -> Result<Resume, VolumeError> {
    let committed = volume.commit(MemoryCut::new(seq, &[(0, 8, tag)]), SIZE).await?;
    Ok(Resume { manifest: None, ..committed.resume })
}

fn diverged(error: &VolumeError) -> (u64, u64) {
    let VolumeError::Diverged { divergence, .. } = error else { panic!("{error}") };
    assert!(error.is_fatal() && !error.is_transient());
    (divergence.number, divergence.found_number)
}

#[tokio::test]
async fn a_writer_that_was_put_back_does_not_take_its_own_later_manifests_for_lost_answers() {
    for steps in [1, 2, 5] {
        let world = World::new();
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        let backup = commit(&volume, 1, 1).await.unwrap();
        for step in 1..=steps {
            commit(&volume, 1 + step, 1 + step).await.unwrap();
        }
        // What the backup had noted.
        let notes = Arc::new(NotesInMemory::default());
        let restored = world.copy(1, notes.clone()).volumes.resume(&backup);
        let error = restored.confirm().await.unwrap_err();
        assert_eq!(diverged(&error), (2, 2 + steps));
        let text = error.to_string();
        assert!(text.contains("manifest 2") && text.contains("2026-01-01T00:00:00Z"), "{text}");
        assert_eq!(diverged(&commit(&restored, 9, 9).await.unwrap_err()), (2, 2 + steps));
        assert!(matches!(restored.delete().await, Err(VolumeError::Diverged { .. })));
        // Nothing in the store has changed, and the next process knows without asking.
        tags(&volume, range(0, 8), &[1 + steps; 8]).await;
        let again = world.copy(1, notes).volumes.resume(&backup);
        assert!(matches!(again.loss(), Some(Loss::Diverged(_))));
        // Reading goes on from what this writer knew, as long as it is there.
        tags(&again, range(0, 8), &[1; 8]).await;
    }
}

#[tokio::test]
async fn of_two_copies_of_a_writer_exactly_one_goes_on() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    let copies = [0, 1].map(|_| world.copy(1, Arc::new(NotesInMemory::default())));
    let [one, other] = copies.map(|copy| copy.volumes.resume(&state));
    commit(&one, 2, 10).await.unwrap();
    assert_eq!(diverged(&commit(&other, 2, 20).await.unwrap_err()), (2, 3));
    commit(&one, 5, 30).await.unwrap();
    tags(&one, range(0, 8), &[30; 8]).await;
    // Both at once: the store takes one manifest of each number.
    let state = Resume { manifest: None, ..one.state() };
    let copies = [0, 1].map(|_| world.copy(1, Arc::new(NotesInMemory::default())));
    let [one, other] = copies.map(|copy| copy.volumes.resume(&state));
    let (first, second) = tokio::join!(commit(&one, 6, 40), commit(&other, 6, 50));
    let (winner, tag, loser) = if first.is_ok() { (&one, 40, second) } else { (&other, 50, first) };
    diverged(&loser.unwrap_err());
    tags(winner, range(0, 8), &[tag; 8]).await;
}

#[tokio::test]
async fn copies_that_create_the_same_name_do_not_both_get_the_volume() {
    let world = World::new();
    let copies = [0, 1].map(|_| world.copy(1, Arc::new(NotesInMemory::default())));
    copies[0].volumes.create(&name("vm"), SIZE).await.unwrap();
    world.clock.advance(std::time::Duration::from_millis(1));
    let error = copies[1].volumes.create(&name("vm"), SIZE).await.unwrap_err();
    assert!(matches!(error, VolumeError::NameTaken { .. }), "{error}");
}

#[tokio::test]
async fn a_store_that_was_put_back_to_an_earlier_state_is_neither_overwritten_nor_called_deleted() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    commit(&volume, 1, 1).await.unwrap();
    commit(&volume, 2, 2).await.unwrap();
    let state = commit(&volume, 3, 3).await.unwrap();
    let newer = [3, 4].map(|number| Key::Manifest(volume.id(), number));
    daemon.volumes.store().delete(&newer).await.unwrap();
    let again = world.daemon(1).volumes.resume(&state);
    assert_eq!(diverged(&again.confirm().await.unwrap_err()), (4, 2));
    assert!(matches!(again.delete().await, Err(VolumeError::Diverged { .. })));
    let point = StatePoint { volume: volume.id(), snapshot: None };
    assert_eq!(daemon.volumes.view(&point).await.unwrap().manifest().number, 2);

    // Another writer takes over what the store was put back to, or a copy goes on from there.
    for taken in [true, false] {
        let world = World::new();
        let daemon = world.daemon(1);
        let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        let earlier = commit(&volume, 1, 1).await.unwrap();
        let state = commit(&volume, 2, 2).await.unwrap();
        daemon.volumes.store().delete(&[Key::Manifest(volume.id(), 3)]).await.unwrap();
        let other = world.copy(1, Arc::new(NotesInMemory::default())).volumes.resume(&earlier);
        if taken {
            world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
        } else {
            commit(&other, 2, 7).await.unwrap();
        }
        let again = world.daemon(1).volumes.resume(&state);
        match (taken, again.commit(MemoryCut::new(3, &[(9, 1, 9)]), SIZE).await.unwrap_err()) {
            (true, VolumeError::Diverged { .. } | VolumeError::Fenced(_)) => {}
            // The number is the same, and what it says is not.
            (false, error) => assert_eq!(diverged(&error), (3, 3)),
            (true, error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_lost_answer_is_adopted_however_often_the_writer_was_restarted_and_tried_something_else() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    // The note is taken, and the process ends before the store hears of the manifest; then another one is sent and arrives.
    for (round, arrives) in [false, false, true].into_iter().enumerate() {
        let again = world.daemon(1).volumes.resume(&state);
        // The listing, the manifest, the pack; then the new manifest.
        world.objects.end_after(3, arrives);
        commit(&again, 2, 2 + round as u64).await.unwrap_err();
        assert!(world.objects.go_on());
    }
    let again = world.daemon(1).volumes.resume(&state);
    again.confirm().await.unwrap();
    assert_eq!((again.state().number, again.cut()), (3, Seq(2)));
    tags(&again, range(0, 8), &[4; 8]).await;
    // What was noted and never sent does not count for another number.
    assert_eq!(commit(&again, 3, 8).await.unwrap().number, 4);
}

#[tokio::test]
async fn a_manifest_that_arrives_late_is_adopted_although_another_was_tried_meanwhile() {
    let notes = NotesInMemory::default();
    let id = crate::store::ids::VolumeId([1; 16]);
    for (number, hash) in [(7, 1), (8, 2), (8, 3)] {
        notes.intend(id, number, [hash; 32]).await.unwrap();
    }
    let found = |number, hash| notes.intended(id, number, &[hash; 32]);
    assert_eq!(
        [found(8, 2), found(8, 3), found(8, 1), found(7, 1)],
        [Some(true), Some(true), Some(false), Some(true)]
    );
    notes.intend(id, 9, [4; 32]).await.unwrap();
    assert_eq!((found(7, 1), found(8, 2), found(9, 4)), (None, Some(true), Some(true)));
    assert_eq!(notes.intended(crate::store::ids::VolumeId([2; 16]), 8, &[2; 32]), None);
}

#[tokio::test]
async fn a_note_that_cannot_be_taken_keeps_the_manifest_from_the_store() {
    #[derive(Debug)]
    struct Full;
    impl Notes for Full {
        fn intend(
            &self,
            _: crate::store::ids::VolumeId,
            _: u64,
            _: [u8; 32],
        ) -> futures_util::future::BoxFuture<'static, std::io::Result<()>> {
            Box::pin(async { Err(std::io::ErrorKind::StorageFull.into()) })
        }

        fn intended(&self, _: crate::store::ids::VolumeId, _: u64, _: &[u8; 32]) -> Option<bool> {
            None
        }

        fn lose(
            &self,
            _: crate::store::ids::VolumeId,
            _: u64,
            _: &Loss,
        ) -> futures_util::future::BoxFuture<'static, std::io::Result<()>> {
            Box::pin(async { Err(std::io::ErrorKind::StorageFull.into()) })
        }

        fn loss(&self, _: crate::store::ids::VolumeId, _: u64) -> Option<Loss> {
            None
        }
    }
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let full = world.copy(1, Arc::new(Full)).volumes.resume(&volume.state());
    let error = commit(&full, 1, 1).await.unwrap_err();
    assert!(matches!(error, VolumeError::NotNoted(_)) && error.is_transient(), "{error}");
    volume.confirm().await.unwrap();
    // A loss that cannot be written down stops the volume all the same.
    let taker = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    assert_eq!(taker.writer(), Fence { epoch: 2, writer: WriterId([2; 16]) });
    assert!(matches!(full.confirm().await, Err(VolumeError::Fenced(_))));
    assert!(matches!(full.loss(), Some(Loss::Fenced(_))));
}
