//! Packs that are damaged or missing in the store: merging goes on beside these, and no content changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::super::compact::plan::{LEVEL_RUNS_MAX, MergeLimits};
use super::super::writer::new_packs::NewPacks;
use super::support::*;
use crate::store::backend::Backend;
use crate::store::client::Created;
use crate::store::faulty::{Fault, Faults, FaultyStore, Seeded};
use crate::store::format::{Codec, DAMAGED_RANGES_MAX, Manifest, PackRef};
use crate::store::ids::Entropy;
use crate::store::key::Key;
use crate::store::volume::{Resume, VolumeError, VolumeWriter};

const SIZE: u64 = 1 << 12;

/// Changes the object of `pack` to what `change` makes of it. `None`: removes the object. Returns the bytes before.
async fn change(world: &World, pack: &PackRef, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) -> Bytes {
    let store = world.daemon(9).volumes.store().clone();
    let key = Key::Pack(pack.volume, pack.pack);
    let before = store.get(&key, 1 << 30).await.unwrap();
    store.delete(std::slice::from_ref(&key)).await.unwrap();
    if let Some(bytes) = change(before.to_vec()) {
        assert_eq!(store.create(&key, &[bytes.into()]).await.unwrap(), Created::Created);
    }
    before
}

async fn restore(world: &World, pack: &PackRef, bytes: Bytes) {
    let store = world.daemon(9).volumes.store().clone();
    let key = Key::Pack(pack.volume, pack.pack);
    store.delete(std::slice::from_ref(&key)).await.unwrap();
    assert_eq!(store.create(&key, &[bytes]).await.unwrap(), Created::Created);
}

/// Flips a bit in a block of `pack`, the one of number `number` among those with data. `false`: the pack has no data.
async fn damage_block(world: &World, volume: &VolumeWriter, pack: &PackRef, number: u64) -> bool {
    let index = volume.host.reader.index(&volume.host.store, pack).await.unwrap();
    let blocks: Vec<_> = index.entries().iter().filter(|entry| entry.codec != Codec::Zero).collect();
    let Some(block) = blocks.get((number % blocks.len().max(1) as u64) as usize) else { return false };
    let at = block.block().start as usize;
    change(world, pack, |mut bytes| {
        bytes[at] ^= 1;
        Some(bytes)
    })
    .await;
    true
}

/// A step, which may fail because of a pack that is missing or damaged: the next step leaves the pack out.
async fn compact(volume: &VolumeWriter, limits: &MergeLimits) -> Option<bool> {
    match volume.compact_within(limits).await {
        Ok(compacted) => compacted.map(|_| true),
        Err(error) => {
            let is_known = error.is_missing() || error.is_damaged();
            assert!(is_known || matches!(error, VolumeError::TooDamaged { .. }), "{error:?}");
            Some(false)
        }
    }
}

/// As many steps as are due. Returns how many had a result.
async fn compact_all(volume: &VolumeWriter, limits: &MergeLimits) -> usize {
    let mut results = Vec::new();
    while let Some(has_result) = compact(volume, limits).await {
        results.push(has_result);
        assert!(results.len() < 1000, "compaction does not end");
    }
    results.into_iter().filter(|has_result| *has_result).count()
}

/// One such block once ended every step that met it, and no other step was ever tried.
#[tokio::test(start_paused = true)]
async fn a_block_that_is_damaged_in_the_store_costs_its_sectors_and_merging_goes_on() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 256, 1), (300, 8, 1)]), SIZE).await.unwrap();
    let pack = volume.view().await.unwrap().manifest().packs[0];
    for seq in 2..=8 {
        volume.commit(MemoryCut::new(seq, &[(400 + seq, 1, seq), (120, 4, seq)]), SIZE).await.unwrap();
    }
    assert!(damage_block(&world, &volume, &pack, 1).await);
    // A newer pack hides a part of the damage.
    world.objects.pause_before("packs");
    let merge = {
        let volume = volume.clone();
        tokio::spawn(async move { volume.compact().await })
    };
    let paused = tokio::time::timeout(std::time::Duration::from_mins(1), world.objects.paused()).await;
    paused.expect("the merge ends before it uploads anything");
    volume.commit(MemoryCut::new(9, &[(130, 10, 9)]), SIZE).await.unwrap();
    world.objects.resume();
    let compacted = merge.await.unwrap().unwrap().unwrap();
    assert_eq!((compacted.packs_before, compacted.packs_after), (8, 1));
    assert_eq!(compacted.resume.damaged_sectors, 118);
    let expected =
        [vec![1; 120], vec![8; 4], vec![1; 4], vec![LOST; 2], vec![9; 10], vec![LOST; 116], vec![0; 44]]
            .concat();
    tags(&volume, range(0, 300), &expected).await;
    tags(&volume, range(300, 10), &[[1; 8].as_slice(), &[0; 2]].concat()).await;
    let other = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    tags(&other, range(0, 300), &expected).await;
    other.commit(MemoryCut::new(10, &[(128, 128, 10)]), SIZE).await.unwrap();
    assert_eq!(other.damaged_sectors(), 0);
    tags(&other, range(124, 140), &[vec![1; 4], vec![10; 128], vec![0; 8]].concat()).await;
}

#[tokio::test]
async fn a_pack_that_is_missing_is_left_out_of_merging_until_it_comes_back() {
    let cut_off = |bytes: Vec<u8>| Some(bytes[..100].to_vec());
    let bad_index = |mut bytes: Vec<u8>| {
        let at = bytes.len() - 200;
        bytes[at] ^= 1;
        Some(bytes)
    };
    for (kind, loses) in [
        ("missing", Box::new(|_| None) as Box<dyn Fn(Vec<u8>) -> Option<Vec<u8>>>),
        ("too short", Box::new(cut_off)),
        ("without an index", Box::new(bad_index)),
    ] {
        let world = World::new();
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        for seq in 1..=60 {
            volume.commit(MemoryCut::new(seq, &[(seq * 8, 8, seq), (2000, 8, seq)]), SIZE).await.unwrap();
        }
        let pack = volume.view().await.unwrap().manifest().packs[25];
        let bytes = change(&world, &pack, loses).await;
        let volume = world.daemon(1).volumes.resume(&Resume { manifest: None, ..volume.state() });
        let limits = MergeLimits::default();
        assert!(compact_all(&volume, &limits).await > 0, "{kind}");
        let merged = volume.view().await.unwrap().manifest().packs.len();
        assert!(merged < 25, "{kind}: {merged} packs are left");
        assert_eq!(volume.damaged_sectors(), 0, "{kind}: it may come back");
        let lost = pack.lowest_sector / 8;
        assert!(volume.read(range(lost * 8, 8)).await.is_err());
        for seq in (1..=60).filter(|seq| *seq < lost) {
            tags(&volume, range(seq * 8, 8), &[seq; 8]).await;
        }
        tags(&volume, range(2000, 8), &[60; 8]).await;
        for seq in 61..=76 {
            volume.commit(MemoryCut::new(seq, &[(seq * 8, 8, seq)]), SIZE).await.unwrap();
            compact_all(&volume, &limits).await;
        }
        assert!(volume.view().await.unwrap().manifest().packs.len() < 25, "{kind}");
        restore(&world, &pack, bytes).await;
        let all: Vec<Tag> = (8..77 * 8).map(|at| at / 8).collect();
        tags(&volume, range(8, 76 * 8), &all).await;
        world.advance_hours(2);
        for seq in 77..=140 {
            volume.commit(MemoryCut::new(seq, &[(1900, 8, seq)]), SIZE).await.unwrap();
            compact_all(&volume, &limits).await;
        }
        let packs = volume.view().await.unwrap().manifest().packs.clone();
        assert!(!packs.iter().any(|other| other.pack == pack.pack), "{kind}: it is merged like all others");
        tags(&volume, range(8, 76 * 8), &all).await;
    }
}

/// A merge of all packs leaves zeroes out, which is right only if no pack stays behind.
#[tokio::test]
async fn zeroes_hide_what_is_older_where_a_merge_of_all_packs_meets_a_missing_one() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for (seq, run) in [(1, (0, 100, 1)), (2, (0, 50, 0)), (3, (60, 8, 3))] {
        volume.commit(MemoryCut::new(seq, &[run]), SIZE).await.unwrap();
    }
    let pack = volume.view().await.unwrap().manifest().packs[0];
    for seq in 4..=8 {
        volume.commit(MemoryCut::new(seq, &[(200 + seq, 1, seq)]), SIZE).await.unwrap();
    }
    let bytes = change(&world, &pack, |_| None).await;
    let volume = world.daemon(1).volumes.resume(&Resume { manifest: None, ..volume.state() });
    compact_all(&volume, &MergeLimits::default()).await;
    tags(&volume, range(0, 60), &[vec![0; 50], vec![1; 10]].concat()).await;
    restore(&world, &pack, bytes).await;
    let expected = [vec![0; 50], vec![1; 10], vec![3; 8], vec![1; 32]].concat();
    tags(&volume, range(0, 100), &expected).await;
    world.advance_hours(2);
    assert_eq!(compact_all(&volume, &MergeLimits::default()).await, 1);
    tags(&volume, range(0, 100), &expected).await;
}

/// A step ends when it has cost enough, and all of that may be damage.
#[tokio::test]
async fn merging_goes_on_where_nothing_but_damage_takes_all_that_a_step_may_cost() {
    const SIZE: u64 = 1 << 16;
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, SIZE / 2, 1)]), SIZE).await.unwrap();
    let pack = volume.view().await.unwrap().manifest().packs[0];
    for seq in 2..=8 {
        volume.commit(MemoryCut::new(seq, &[(SIZE - seq, 1, seq)]), SIZE).await.unwrap();
    }
    let index = volume.host.reader.index(&volume.host.store, &pack).await.unwrap();
    let all = |mut bytes: Vec<u8>| {
        index.entries().iter().for_each(|entry| bytes[entry.block().start as usize] ^= 1);
        Some(bytes)
    };
    change(&world, &pack, all).await;
    let limits = MergeLimits { step_bytes_max: 1000, ..MergeLimits::default() };
    assert!(compact_all(&volume, &limits).await > 0);
    assert_eq!(volume.damaged_sectors(), SIZE / 2);
    assert!(volume.view().await.unwrap().manifest().packs.iter().all(|other| other.pack != pack.pack));
    tags(&volume, range(SIZE - 8, 7), &[8, 7, 6, 5, 4, 3, 2]).await;
}

/// Damage is listed for good, so only what the store has twice may count.
#[tokio::test(start_paused = true)]
async fn bytes_that_change_on_their_way_are_never_taken_for_damage() {
    let mut fired = 0;
    for seed in 0..20 {
        let world = World::seeded(seed);
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        for seq in 1..=24 {
            let runs = [(seq * 16, 24, seq), (2000, 8, seq), (3000, 4, seq)];
            volume.commit(MemoryCut::new(seq, &runs), SIZE).await.unwrap();
        }
        let faults = Faults::new(seed);
        let backend = Backend::over(Arc::new(FaultyStore::new(world.objects.clone(), faults.clone())), true);
        let daemon = world.daemon_over(1, backend, 64 << 20);
        let volume = daemon.volumes.resume(&Resume { manifest: None, ..volume.state() });
        let limits = MergeLimits::default();
        volume.view().await.unwrap();
        faults.set_all(&[Fault::Truncated, Fault::FlippedBit], 300);
        for _ in 0..20 {
            if let Err(error) = volume.compact_within(&limits).await {
                assert!(error.is_damaged() || error.is_unreachable(), "{error:?}");
            }
        }
        assert_eq!(volume.damaged_sectors(), 0, "seed {seed}");
        faults.set_all(&[Fault::Truncated, Fault::FlippedBit], 0);
        fired += faults.fired(Fault::FlippedBit);
        world.advance_hours(2);
        compact_all(&volume, &limits).await;
        assert!(volume.view().await.unwrap().manifest().packs.len() < 10);
        let expected: Vec<Tag> = (16..25 * 16).map(|at| at / 16).chain([24; 8]).collect();
        tags(&volume, range(16, 24 * 16 + 8), &expected).await;
        tags(&volume, range(2000, 8), &[24; 8]).await;
    }
    assert!(fired > 100, "{fired}");
}

#[tokio::test]
async fn damage_that_no_manifest_can_list_stays_where_it_is() {
    const SIZE: u64 = 1 << 20;
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(SIZE - 256, 256, 1)]), SIZE).await.unwrap();
    let pack = volume.view().await.unwrap().manifest().packs[0];
    for seq in 2..=20 {
        volume.commit(MemoryCut::new(seq, &[(SIZE - 512, 8, seq)]), SIZE).await.unwrap();
    }
    assert!(damage_block(&world, &volume, &pack, 0).await);
    let full = |base: &Manifest| {
        let mut manifest = base.clone();
        manifest.sections.damaged = (0..DAMAGED_RANGES_MAX as u64).map(|at| range(2 * at, 1)).collect();
        Some(manifest)
    };
    volume.publish(&NewPacks::default(), full).await.unwrap().unwrap();
    assert!(compact_all(&volume, &MergeLimits::default()).await > 0);
    assert_eq!(volume.damaged_sectors(), DAMAGED_RANGES_MAX as u64);
    let packs = volume.view().await.unwrap().manifest().packs.clone();
    assert!(packs.len() < 10 && packs.iter().any(|other| other.pack == pack.pack), "{}", packs.len());
    assert!(volume.read(range(SIZE - 256, 1)).await.is_err());
    tags(&volume, range(SIZE - 512, 8), &[20; 8]).await;
    tags(&volume, range(SIZE - 128, 128), &[1; 128]).await;
}

/// A volume whose packs go missing, come back, and are damaged.
struct Broken {
    world: World,
    entropy: Seeded,
    volume: VolumeWriter,
    model: BTreeMap<u64, Tag>,
    missing: Vec<(PackRef, Bytes)>,
    /// Sectors whose content is in a damaged block.
    lost: BTreeSet<u64>,
    sectors: u64,
}

impl Broken {
    fn below(&self, bound: u64) -> u64 {
        self.entropy.next_u64() % bound
    }

    async fn write(&mut self, seq: u64) {
        let mut cut = BTreeMap::new();
        for _ in 0..=self.below(6) {
            let (start, count) = (self.below(self.sectors), self.below(200) + 1);
            let tag = self.below(5) * (seq * 2 + 1);
            cut.extend((start..(start + count).min(self.sectors)).map(|at| (at, tag)));
        }
        self.volume.commit(MemoryCut::of(seq, &cut), SIZE).await.unwrap();
        self.lost.retain(|sector| !cut.contains_key(sector));
        self.model.extend(cut);
    }

    async fn pack(&self) -> PackRef {
        let view = self.volume.view().await.unwrap();
        let packs = &view.manifest().packs;
        packs[self.below(packs.len() as u64) as usize]
    }

    async fn lose(&mut self) {
        let pack = self.pack().await;
        if self.missing.iter().all(|(other, _)| other.pack != pack.pack) {
            let bytes = change(&self.world, &pack, |_| None).await;
            self.missing.push((pack, bytes));
        }
    }

    async fn find(&mut self) {
        if let Some((pack, bytes)) = self.missing.pop() {
            restore(&self.world, &pack, bytes).await;
        }
    }

    async fn damage(&mut self) {
        if self.missing.is_empty() {
            let (pack, number) = (self.pack().await, self.below(100));
            damage_block(&self.world, &self.volume, &pack, number).await;
            let failing = self.failing().await;
            self.lost.extend(failing.into_keys());
        }
    }

    fn restart(&mut self) {
        let state = Resume { manifest: None, ..self.volume.state() };
        self.volume = self.world.daemon(1).volumes.resume(&state);
    }

    /// The sectors that cannot be read, with the reason. All others have their content.
    async fn failing(&self) -> BTreeMap<u64, VolumeError> {
        let mut failing = BTreeMap::new();
        let mut at = 0;
        while at < self.sectors {
            let mut part = range(at, 50.min(self.sectors - at));
            let mut read = self.volume.read(part).await;
            if read.is_err() {
                part = range(at, 1);
                read = self.volume.read(part).await;
            }
            match read {
                Ok(bytes) => {
                    let expected = (at..part.end()).map(|at| self.model.get(&at).copied().unwrap_or(0));
                    compare(part, &bytes, &expected.collect::<Vec<Tag>>());
                }
                Err(error) => drop(failing.insert(at, error)),
            }
            at = part.end();
        }
        failing
    }

    /// Each sector has its content, or is an error for a known reason.
    async fn check(&self) {
        let failing = self.failing().await;
        for (at, error) in &failing {
            let is_missing =
                |(pack, _): &(PackRef, Bytes)| (pack.lowest_sector..=pack.highest_sector).contains(at);
            let is_explained = self.lost.contains(at) || self.missing.iter().any(is_missing);
            assert!(is_explained, "sector {at}: {error}");
        }
        let mut lost = self.lost.iter();
        assert!(lost.all(|at| failing.contains_key(at)), "what is lost reads as something else");
    }
}

#[tokio::test]
async fn whatever_is_missing_or_damaged_all_other_content_stays_and_the_packs_are_few() {
    let mut counts = [0; 3];
    for seed in 0..12 {
        let world = World::seeded(seed);
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        let sectors = if seed % 5 == 0 { 300 } else { 1500 };
        let (entropy, model, missing, lost) =
            (Seeded::new(seed), BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut broken = Broken { world, entropy, volume, model, missing, lost, sectors };
        let young_bytes_min = if seed % 3 == 0 { 100_000 } else { u64::MAX };
        let limits = if seed % 2 == 0 {
            MergeLimits { step_bytes_max: 5000, young_bytes_min, move_bytes_min: 200, pack_bytes: Some(2000) }
        } else {
            let move_bytes_min = if seed % 4 == 1 { 10_000 } else { u64::MAX };
            MergeLimits { step_bytes_max: u64::MAX, young_bytes_min, move_bytes_min, pack_bytes: None }
        };
        for seq in 1..120 {
            broken.write(seq).await;
            match broken.below(12) {
                0 => broken.lose().await,
                1 | 2 => broken.find().await,
                3 if broken.below(3) == 0 => broken.damage().await,
                4 => broken.restart(),
                5 => broken.world.advance_hours(1),
                _ => {}
            }
            match broken.below(3) {
                0 => drop(compact(&broken.volume, &limits).await),
                1 => drop(compact_all(&broken.volume, &limits).await),
                _ => {}
            }
            if seq % 10 == 0 {
                broken.check().await;
            }
            counts[0] += usize::from(!broken.missing.is_empty());
            counts[1] += broken.lost.len();
            counts[2] += broken.volume.damaged_sectors() as usize;
        }
        compact_all(&broken.volume, &limits).await;
        broken.check().await;
        let parts = broken.missing.len() + 1;
        let fan_out = broken.volume.crowd().unwrap().fan_out;
        assert!(fan_out <= 4 * parts * LEVEL_RUNS_MAX, "seed {seed}: {fan_out} packs in {parts} parts");
        while !broken.missing.is_empty() {
            broken.find().await;
        }
        broken.world.advance_hours(2);
        broken.check().await;
        broken.write(120).await;
        compact_all(&broken.volume, &limits).await;
        broken.check().await;
        let fan_out = broken.volume.crowd().unwrap().fan_out;
        assert!(fan_out <= 3 * LEVEL_RUNS_MAX, "seed {seed}: {fan_out} packs");
    }
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}
