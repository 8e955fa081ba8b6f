//! Creations over slow lines.

use futures_util::future::join_all;

use super::*;
use crate::fair::WEIGHT_DEFAULT;

const MIB: u64 = 1 << 20;

/// A store behind a line of so many bytes a second.
fn slow(bytes_per_second: u64) -> (Store, Arc<ScriptedStore>) {
    let objects = ScriptedStore::new(Arc::default());
    objects.upload(|line| line.bytes_per_second = bytes_per_second);
    (Store::over(Backend::over(objects.clone(), true), StoreOptions::default()), objects)
}

fn zeroes(bytes: u64) -> [Bytes; 1] {
    [vec![0; usize::try_from(bytes).unwrap()].into()]
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_moves_is_not_given_up_however_long_it_takes() {
    let (store, objects) = slow(16 << 10);
    assert_eq!(store.create(&manifest(1), &zeroes(8 * MIB)).await.unwrap(), Created::Created);
    assert_eq!(store.stats().of(Operation::Put).requests.get(), 1);
    assert_eq!(objects.upload(|_| {}).sent, 8 * MIB);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_stands_still_is_given_up_and_sent_again() {
    let (store, objects) = slow(MIB);
    objects.upload(|line| line.end = Some(2 * MIB));
    let upload = tokio::spawn({
        let store = store.clone();
        async move { store.create(&manifest(1), &zeroes(8 * MIB)).await }
    });
    while store.stats().of(Operation::Put).requests.get() < 2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(objects.upload(|line| line.end = None).sent, 2 * MIB);
    assert_eq!(upload.await.unwrap().unwrap(), Created::Created);
    assert_eq!(objects.upload(|_| {}).sent, 10 * MIB);
    // A line that never goes on ends the request.
    objects.upload(|line| line.end = Some(0));
    let error = store.create(&manifest(2), &zeroes(MIB)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { tries: 6.., .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn eight_volumes_on_a_line_of_one_mib_a_second_send_each_pack_once_and_few_at_once() {
    const PACKS: u64 = 5;
    const PACK_BYTES: u64 = 32 * MIB;
    let (store, objects) = slow(MIB);
    let data = zeroes(PACK_BYTES);
    let packs = (0..8 * PACKS).map(|number| {
        let number = u8::try_from(number).unwrap();
        let volume = VolumeId([number % 8; 16]);
        let (store, data) = (store.for_packs(volume, WEIGHT_DEFAULT), data.clone());
        async move {
            let created = store.create(&Key::Pack(volume, PackId([number; 16])), &data).await;
            assert_eq!(created.unwrap(), Created::Created);
        }
    });
    let (begun, packs) = (Instant::now(), join_all(packs));
    tokio::pin!(packs);
    let mut at_once = Vec::new();
    while timeout(Duration::from_secs(10), &mut packs).await.is_err() {
        at_once.push(objects.upload(|_| {}).count);
    }
    let bytes = 8 * PACKS * PACK_BYTES;
    assert_eq!(objects.upload(|_| {}).sent, bytes, "each byte goes up once");
    assert!(bytes / begun.elapsed().as_secs() > MIB * 85 / 100, "the line is full");
    assert!(at_once[0] >= 6 && at_once[at_once.len() / 2..].iter().all(|count| *count <= 2), "{at_once:?}");
}

#[tokio::test(start_paused = true)]
async fn packs_on_a_full_line_go_up_by_the_weight_of_their_volumes() {
    // No more than one at once: so much is always let through, and each takes long.
    const PACK_BYTES: u64 = 64 * MIB;
    let (store, _) = slow(MIB / 2);
    store.inner.uplink.turns(PACK_BYTES).resize(|_| PACK_BYTES);
    let (order, data) = (Arc::new(std::sync::Mutex::new(Vec::new())), zeroes(PACK_BYTES));
    let packs = (0..24_u8).map(|at| {
        let (volume, weight) = [(VolumeId([1; 16]), 300), (VolumeId([2; 16]), 100)][usize::from(at % 2)];
        let (store, order, data) = (store.for_packs(volume, weight), Arc::clone(&order), data.clone());
        async move {
            let _ = store.create(&Key::Pack(volume, PackId([at; 16])), &data).await.unwrap();
            order.lock().unwrap().push(weight);
        }
    });
    join_all(packs).await;
    let heavy = order.lock().unwrap()[..12].iter().filter(|weight| **weight == 300).count();
    assert!((8..=10).contains(&heavy), "{:?}", order.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_short_pack_does_not_wait_for_long_ones() {
    let (store, objects) = slow(MIB);
    let data = zeroes(128 * MIB);
    let pack = |number| Key::Pack(VOLUME, PackId([number; 16]));
    let long = join_all((0..4).map(|number| {
        let (store, key, data) = (store.for_packs(VOLUME, WEIGHT_DEFAULT), pack(number), data.clone());
        async move { store.create(&key, &data).await }
    }));
    tokio::pin!(long);
    assert!(timeout(Duration::from_secs(1), &mut long).await.is_err());
    let short = store.for_packs(VOLUME, WEIGHT_DEFAULT);
    let (key, data) = (pack(9), zeroes(4096));
    let created = tokio::select! {
        _ = &mut long => panic!("the short pack waits for long ones"),
        created = short.create(&key, &data) => created,
    };
    assert_eq!(created.unwrap(), Created::Created);
    assert!(objects.upload(|_| {}).sent < 16 * MIB);
}
