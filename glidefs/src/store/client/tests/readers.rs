//! GETs of readers: second requests for late ones, and turns.

use super::*;
use crate::fair::WEIGHT_DEFAULT;

/// A store with one object, whose reads take `millis`.
async fn scripted(millis: u64) -> (Store, Arc<ScriptedStore>) {
    let objects = ScriptedStore::new(Arc::default());
    let store = Store::over(Backend::over(objects.clone(), true), StoreOptions::default());
    let _ = store.create(&manifest(1), &one(b"0123")).await.unwrap();
    objects.read_for(millis);
    (store, objects)
}

#[tokio::test(start_paused = true)]
async fn a_get_of_a_reader_that_is_late_is_sent_a_second_time_and_the_first_answer_counts() {
    let (store, objects) = scripted(20).await;
    let reader = store.for_readers(VOLUME, WEIGHT_DEFAULT);
    for _ in 0..100 {
        reader.get(&manifest(1), 4).await.unwrap();
    }
    let hedges = |store: &Store| (store.stats().hedges.get(), store.stats().hedges_won.get());
    assert_eq!(hedges(&store), (0, 0));
    objects.next_reads_for(&[15_000]);
    assert_eq!(reader.get(&manifest(1), 4).await.unwrap(), "0123");
    assert_eq!(hedges(&store), (1, 1));
    // The first may still be the faster one.
    objects.next_reads_for(&[30, 15_000]);
    assert_eq!(reader.get(&manifest(1), 4).await.unwrap(), "0123");
    assert_eq!(hedges(&store), (2, 1));
    // A request outside of reads gets no second request.
    objects.next_reads_for(&[15_000]);
    store.get(&manifest(1), 4).await.unwrap();
    assert_eq!(hedges(&store), (2, 1));
    assert_eq!(store.stats().of(Operation::Get).requests.get(), 105);
}

#[tokio::test(start_paused = true)]
async fn second_requests_are_few_however_many_gets_are_late() {
    let (store, objects) = scripted(20).await;
    let reader = store.for_readers(VOLUME, WEIGHT_DEFAULT);
    for _ in 0..1000 {
        reader.get(&manifest(1), 4).await.unwrap();
    }
    for at in 0..2000_u64 {
        // One of ten is late: more than there may be second requests.
        if at % 10 == 0 {
            objects.next_reads_for(&[500]);
        }
        reader.get(&manifest(1), 4).await.unwrap();
    }
    let sent = store.stats().hedges.get();
    assert!((1..=110).contains(&sent), "{sent} second requests");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_not_asked_twice() {
    let (store, objects) = scripted(20).await;
    let reader = store.for_readers(VOLUME, WEIGHT_DEFAULT);
    for _ in 0..1000 {
        reader.get(&manifest(1), 4).await.unwrap();
    }
    objects.read_for(3_600_000);
    let before = store.stats().of(Operation::Get).requests.get();
    for _ in 0..10 {
        let error = reader.get(&manifest(1), 4).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { tries: 1, .. }), "{error}");
    }
    assert_eq!(store.stats().hedges.get(), 1, "before the first has failed");
    assert_eq!(store.stats().of(Operation::Get).requests.get() - before, 11);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_meets_a_stalled_store_leaves_turns_to_others_and_holds_none_while_it_pauses() {
    let (store, objects) = scripted(3_600_000).await;
    let reader = |number: u8| store.for_readers(VolumeId([number; 16]), WEIGHT_DEFAULT);
    let stalled: Vec<_> = (0..200)
        .map(|_| {
            let reader = reader(1);
            tokio::spawn(async move { reader.get(&manifest(1), 4).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    objects.read_for(0);
    assert_eq!(reader(2).get(&manifest(1), 4).await.unwrap(), "0123");
    assert!(stalled.iter().all(|read| !read.is_finished()), "they wait for the store, or for those that do");
    for read in stalled {
        // GETs that were sent fail and give their turns to the rest, which find the store as the store is now.
        let _ = read.await.unwrap();
    }
    let all: Vec<_> =
        (0..64).map(|number| reader(number).inner.turns.try_take(VolumeId([number; 16]), 1)).collect();
    assert!(all.iter().all(Option::is_some), "all turns are free again");
}
