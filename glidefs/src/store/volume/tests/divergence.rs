//! Two histories of one volume, a host's and the store's: copies of a host, and hosts and stores restored from a backup.

use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use crate::store::ids::VolumeId;
use crate::store::key::Key;
use crate::store::volume::{Loss, Notes, NotesInMemory, Resume, StatePoint, VolumeError, VolumeWriter};
use crate::units::Seq;

pub const SIZE: u64 = 1 << 21;

pub async fn commit(volume: &VolumeWriter, seq: u64, tag: Tag) -> Result<Resume, VolumeError> {
    let committed = volume.commit(MemoryCut::new(seq, &[(0, 8, tag)]), SIZE).await?;
    Ok(Resume { manifest: None, ..committed.resume })
}

/// The error of a writer at a store that went back, which the writer believes after a time.
async fn believed(world: &World, volume: &VolumeWriter) -> VolumeError {
    let error = volume.confirm().await.unwrap_err();
    assert!(error.is_missing() && !error.is_fatal(), "{error}");
    world.clock.advance(Duration::from_secs(31));
    volume.confirm().await.unwrap_err()
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
        // Notes at the time of the backup.
        let notes = Arc::new(NotesInMemory::default());
        let restored = world.copy(1, notes.clone()).volumes.resume(&backup);
        let error = restored.confirm().await.unwrap_err();
        assert_eq!(diverged(&error), (2, 2 + steps));
        let text = error.to_string();
        assert!(text.contains("manifest 2") && text.contains("2026-01-01T00:00:00Z"), "{text}");
        assert_eq!(diverged(&commit(&restored, 9, 9).await.unwrap_err()), (2, 2 + steps));
        assert!(matches!(restored.delete().await, Err(VolumeError::Diverged { .. })));
        // The store is unchanged, and the next process knows the loss without a request.
        tags(&volume, range(0, 8), &[1 + steps; 8]).await;
        let again = world.copy(1, notes).volumes.resume(&backup);
        assert!(matches!(again.loss(), Some(Loss::Diverged(_))));
        // Reading goes on from the last manifest of this writer, while its packs exist.
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
    // Both writers at once: the store takes one manifest of each number.
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
    world.clock.advance(Duration::from_millis(1));
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
    assert_eq!(diverged(&believed(&world, &again).await), (4, 2));
    assert!(matches!(again.delete().await, Err(VolumeError::Diverged { .. })));
    let point = StatePoint { volume: volume.id(), snapshot: None };
    assert_eq!(daemon.volumes.view(&point).await.unwrap().manifest().number, 2);

    // Another writer takes over the restored store, or a copy of this writer goes on from it.
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
            // The number is the same; the content is not.
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
    // The note is taken, and the process ends before the store hears of the manifest. Then another manifest is sent and arrives.
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
    // A note on a manifest that was never sent does not count for another number.
    assert_eq!(commit(&again, 3, 8).await.unwrap().number, 4);
}

#[tokio::test(start_paused = true)]
async fn a_slow_question_about_a_lost_answer_is_not_taken_for_a_divergence_when_commits_overtake_the_question()
 {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    commit(&volume, 2, 2).await.unwrap();
    // The host was lost after noting manifest 3 and before hearing of the answer.
    let again = world.daemon(1).volumes.resume(&state);
    world.objects.next_reads_for(&[500]);
    let asked = tokio::spawn({
        let again = again.clone();
        async move { again.confirm().await }
    });
    // The question has the number of manifest 3, and waits for the manifest.
    tokio::time::sleep(Duration::from_millis(1)).await;
    for seq in 3..6 {
        commit(&again, seq, seq).await.unwrap();
    }
    asked.await.unwrap().unwrap();
    assert_eq!((again.loss(), again.state().number), (None, 6));
    tags(&again, range(0, 8), &[5; 8]).await;
}

#[tokio::test]
async fn what_still_works_for_an_export_that_another_one_has_followed_does_not_give_the_volume_up() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    // The export goes on under another id, as after a rollback, while a merge of its packs is under way.
    let next = daemon.volumes.resume(&state);
    for seq in 2..6 {
        commit(&next, seq, seq).await.unwrap();
    }
    volume.compact().await.unwrap();
    commit(&volume, 6, 6).await.unwrap();
    commit(&next, 7, 7).await.unwrap();
    assert_eq!((volume.loss(), next.loss()), (None, None));
    assert_eq!(volume.state().number, next.state().number);
    tags(&volume, range(0, 8), &[7; 8]).await;
    // A later epoch is another writer, and so is an epoch that begins after a loss.
    let taken = daemon.volumes.take_over(&name("vm")).await.unwrap();
    assert!(matches!(commit(&next, 8, 8).await, Err(VolumeError::Fenced(_))));
    commit(&taken, 8, 8).await.unwrap();
    assert!(matches!(daemon.volumes.resume(&state).loss(), Some(Loss::Fenced(_))));
    assert_eq!(daemon.volumes.resume(&taken.state()).loss(), None);
}

#[tokio::test]
async fn own_manifests_that_are_hidden_from_a_listing_are_found_though_their_notes_were_dropped() {
    for hidden in ["manifests/", "manifests/00000000000000000005"] {
        let world = World::new();
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        let state = commit(&volume, 1, 1).await.unwrap();
        for seq in 2..=4 {
            commit(&volume, seq, seq).await.unwrap();
        }
        // The host was lost before hearing that manifest 3, 4 or 5 is in the store.
        let again = world.daemon(1).volumes.resume(&state);
        world.objects.list_without(Some(hidden));
        again.confirm().await.unwrap();
        commit(&again, 5, 5).await.unwrap();
        assert_eq!((again.loss(), again.state().number), (None, 6));
        tags(&again, range(0, 8), &[5; 8]).await;
    }
}

#[tokio::test]
async fn a_manifest_that_arrives_late_is_adopted_although_another_was_tried_meanwhile() {
    let notes = NotesInMemory::default();
    let id = VolumeId([1; 16]);
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
    assert_eq!(notes.intended(VolumeId([2; 16]), 8, &[2; 32]), None);
}

#[tokio::test]
async fn a_store_that_is_behind_for_one_start_does_not_end_a_volume() {
    use object_store::ObjectStoreExt as _;
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    commit(&volume, 1, 1).await.unwrap();
    let state = commit(&volume, 2, 2).await.unwrap();
    // A lagging replica has only manifest 2.
    let newest = object_store::path::Path::from(Key::Manifest(volume.id(), 3).to_string());
    let bytes = world.objects.get(&newest).await.unwrap().bytes().await.unwrap();
    daemon.volumes.store().delete(&[Key::Manifest(volume.id(), 3)]).await.unwrap();
    let behind = world.daemon(1).volumes.resume(&state);
    assert_eq!(diverged(&believed(&world, &behind).await), (3, 2));
    diverged(&commit(&behind, 3, 3).await.unwrap_err());
    // Every start finds the divergence again, until the store is the right one.
    diverged(&believed(&world, &world.daemon(1).volumes.resume(&state)).await);
    world.objects.put(&newest, bytes.into()).await.unwrap();
    let again = world.daemon(1).volumes.resume(&state);
    again.confirm().await.unwrap();
    assert_eq!(commit(&again, 3, 3).await.unwrap().number, 4);
}

#[tokio::test]
async fn a_creation_that_a_version_without_notes_did_not_finish_can_be_repeated() {
    for (writer, is_old, goes_on) in [(1, true, true), (1, false, false), (2, true, false)] {
        let world = World::new();
        let daemon = world.daemon(writer);
        let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        let store = daemon.volumes.store();
        if is_old {
            // An earlier version named no holder.
            let mut first = store.manifest(volume.id(), 1).await.unwrap();
            first.sections.holder = None;
            let key = Key::Manifest(volume.id(), 1);
            store.delete(std::slice::from_ref(&key)).await.unwrap();
            let _: crate::store::Created =
                store.create(&key, &[first.encode().unwrap().into()]).await.unwrap();
        }
        world.clock.advance(Duration::from_millis(1));
        // A process without notes.
        let again = world.copy(1, Arc::<NotesInMemory>::default());
        for _ in 0..2 {
            match again.volumes.create(&name("vm"), SIZE).await {
                Ok(again) => assert_eq!((again.id(), goes_on), (volume.id(), true)),
                Err(error) => assert!(matches!(error, VolumeError::NameTaken { .. }) && !goes_on, "{error}"),
            }
        }
        if goes_on {
            commit(&volume, 1, 1).await.unwrap();
            let error = again.volumes.create(&name("vm"), SIZE).await.unwrap_err();
            assert!(matches!(error, VolumeError::NameTaken { .. }), "{error}");
        }
    }
}
