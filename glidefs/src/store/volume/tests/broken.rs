//! Packs that are damaged or missing in the store: merging goes on beside these, and no content changes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::compact::plan::{LEVEL_RUNS_MAX, MergeLimits};
use super::support::*;
use crate::store::client::Created;
use crate::store::faulty::Seeded;
use crate::store::format::{Codec, PackRef};
use crate::store::ids::{Entropy, PackId};
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
        Err(VolumeError::PacksLeftOut { .. }) => None,
        Err(error) => {
            assert!(error.is_missing() || error.is_damaged(), "{error:?}");
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

#[tokio::test(start_paused = true)]
async fn a_pack_that_is_missing_or_damaged_is_left_out_of_merging_until_it_comes_back() {
    let cut_off = |bytes: Vec<u8>| Some(bytes[..100].to_vec());
    let bad_block = |mut bytes: Vec<u8>| {
        bytes[60] ^= 1;
        Some(bytes)
    };
    let bad_index = |mut bytes: Vec<u8>| {
        let at = bytes.len() - 200;
        bytes[at] ^= 1;
        Some(bytes)
    };
    for (kind, loses) in [
        ("missing", Box::new(|_| None) as Box<dyn Fn(Vec<u8>) -> Option<Vec<u8>>>),
        ("too short", Box::new(cut_off)),
        ("without an index", Box::new(bad_index)),
        ("damaged", Box::new(bad_block)),
    ] {
        let world = World::new();
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        for seq in 1..=60 {
            volume.commit(MemoryCut::new(seq, &[(seq * 8, 8, seq), (2000, 8, seq)]), SIZE).await.unwrap();
        }
        let pack = volume.view().await.unwrap().manifest().packs[25];
        let bytes = change(&world, &pack, loses).await;
        let volume = world.daemon(1).volumes.resume(&Resume { manifest: None, ..volume.state() });
        let limits = MergeLimits::USUAL;
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

/// Whoever asked for the step must not take it for done: writes may wait for it.
#[tokio::test(start_paused = true)]
async fn a_step_that_needs_a_pack_which_is_left_out_fails_until_the_pack_is_back() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=LEVEL_RUNS_MAX as u64 {
        volume.commit(MemoryCut::new(seq, &[(seq * 8, 8, seq)]), SIZE).await.unwrap();
    }
    let pack = volume.view().await.unwrap().manifest().packs[3];
    let bytes = change(&world, &pack, |_| None).await;
    let volume = world.daemon(1).volumes.resume(&Resume { manifest: None, ..volume.state() });
    while compact(&volume, &MergeLimits::USUAL).await.is_some() {}
    for _ in 0..3 {
        let error = volume.compact().await.unwrap_err();
        assert!(matches!(error, VolumeError::PacksLeftOut { packs: 1, .. }), "{error}");
    }
    restore(&world, &pack, bytes).await;
    world.advance_hours(2);
    assert!(compact_all(&volume, &MergeLimits::USUAL).await > 0);
    assert_eq!(volume.view().await.unwrap().manifest().packs.len(), 1);
}

/// A merge of all packs leaves zeroes out, which is right only if no pack stays behind.
#[tokio::test(start_paused = true)]
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
    compact_all(&volume, &MergeLimits::USUAL).await;
    tags(&volume, range(0, 60), &[vec![0; 50], vec![1; 10]].concat()).await;
    restore(&world, &pack, bytes).await;
    let expected = [vec![0; 50], vec![1; 10], vec![3; 8], vec![1; 32]].concat();
    tags(&volume, range(0, 100), &expected).await;
    world.advance_hours(2);
    assert_eq!(compact_all(&volume, &MergeLimits::USUAL).await, 1);
    tags(&volume, range(0, 100), &expected).await;
}

/// A volume whose packs go missing, come back, and are damaged.
struct Broken {
    world: World,
    entropy: Seeded,
    volume: VolumeWriter,
    model: BTreeMap<u64, Tag>,
    missing: Vec<(PackRef, Bytes)>,
    /// Packs with damaged blocks.
    damaged: BTreeSet<PackId>,
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
            if damage_block(&self.world, &self.volume, &pack, number).await {
                self.damaged.insert(pack.pack);
            }
            let failing = self.failing().await;
            self.lost.extend(failing.into_keys());
        }
    }

    fn restart(&mut self) {
        let state = Resume { manifest: None, ..self.volume.state() };
        self.volume = self.world.daemon(1).volumes.resume(&state);
    }

    /// Number of parts of the list of packs between those that cannot be read.
    async fn parts(&self) -> usize {
        let view = self.volume.view().await.unwrap();
        let is_bad = |pack: &&PackRef| {
            self.damaged.contains(&pack.pack) || self.missing.iter().any(|(other, _)| other.pack == pack.pack)
        };
        view.manifest().packs.iter().filter(is_bad).count() + 1
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

#[tokio::test(start_paused = true)]
async fn whatever_is_missing_or_damaged_all_other_content_stays_and_the_packs_are_few() {
    let mut counts = [0; 2];
    for seed in [0, 1, 3, 4] {
        let world = World::seeded(seed);
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        let sectors = if seed % 5 == 0 { 300 } else { 1500 };
        let (entropy, model, missing) = (Seeded::new(seed), BTreeMap::new(), Vec::new());
        let (damaged, lost) = (BTreeSet::new(), BTreeSet::new());
        let mut broken = Broken { world, entropy, volume, model, missing, damaged, lost, sectors };
        let young_bytes_min = if seed % 3 == 0 { 100_000 } else { u64::MAX };
        let limits = if seed % 2 == 0 {
            let pack_bytes = Some(2000);
            let windows_bytes_max = if seed == 4 { 2000 } else { 1 << 20 };
            MergeLimits {
                step_bytes_max: 5000,
                young_bytes_min,
                move_bytes_min: 200,
                pack_bytes,
                windows_bytes_max,
                loaded_bytes_max: 2000,
            }
        } else {
            let move_bytes_min = if seed % 4 == 1 { 10_000 } else { u64::MAX };
            let step_bytes_max = u64::MAX;
            MergeLimits { step_bytes_max, young_bytes_min, move_bytes_min, ..MergeLimits::USUAL }
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
        }
        compact_all(&broken.volume, &limits).await;
        broken.check().await;
        let parts = broken.parts().await;
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
        let (fan_out, parts) = (broken.volume.crowd().unwrap().fan_out, broken.parts().await);
        assert!(fan_out <= 3 * parts * LEVEL_RUNS_MAX, "seed {seed}: {fan_out} packs in {parts} parts");
    }
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}
