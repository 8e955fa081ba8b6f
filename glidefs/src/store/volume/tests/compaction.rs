//! Compaction: the same content in fewer packs, in steps, beside commits.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::super::compact::plan::{LEVEL_RUNS_MAX, MergeLimits};
use super::super::writer::new_packs::NewPacks;
use super::support::*;
use crate::store::faulty::Seeded;
use crate::store::format::{Manifest, PACKS_MAX, PackRef};
use crate::store::ids::Entropy;
use crate::store::key::Folder;
use crate::store::volume::{VOLUME_BYTES_MAX, VolumeError, VolumeWriter, check_size};

const SIZE: u64 = 1 << 21;

/// With these limits, young data never outgrows the rest, and every step is a whole merge.
const PLAIN: MergeLimits = MergeLimits {
    step_bytes_max: u64::MAX,
    young_bytes_min: u64::MAX,
    move_bytes_min: u64::MAX,
    ..MergeLimits::USUAL
};

async fn compact_all(volume: &VolumeWriter, limits: &MergeLimits) -> usize {
    let mut steps = 0;
    while let Some(compacted) = volume.compact_within(limits).await.unwrap() {
        steps += 1;
        assert!(steps < 1000, "compaction does not end: {compacted:?}");
    }
    steps
}

async fn packs(volume: &VolumeWriter) -> usize {
    volume.view().await.unwrap().manifest().packs.len()
}

/// Length of all packs of `volume` in the store, bytes: of those that were merged as well.
async fn stored_bytes(daemon: &Daemon, volume: &VolumeWriter) -> u64 {
    let packs = daemon.volumes.store().list(Folder::Packs(volume.id()), None).await.unwrap();
    packs.iter().map(|object| object.bytes).sum()
}

/// Random writes over `sectors`, each a cut of its own, and the content after them.
async fn write(
    volume: &VolumeWriter,
    entropy: &Seeded,
    model: &mut BTreeMap<u64, Tag>,
    seq: u64,
    sectors: u64,
) {
    let mut cut = BTreeMap::new();
    for _ in 0..=entropy.next_u64() % 6 {
        let (start, count) = (entropy.next_u64() % sectors, entropy.next_u64() % 200 + 1);
        let tag = entropy.next_u64() % 5 * (seq * 2 + 1);
        cut.extend((start..(start + count).min(sectors)).map(|at| (at, tag)));
    }
    volume.commit(MemoryCut::of(seq, &cut), SIZE).await.unwrap();
    model.extend(cut);
}

async fn check(volume: &VolumeWriter, model: &BTreeMap<u64, Tag>, sectors: u64) {
    let expected: Vec<Tag> = (0..sectors).map(|at| model.get(&at).copied().unwrap_or(0)).collect();
    tags(volume, range(0, sectors), &expected).await;
}

#[tokio::test]
async fn eight_runs_of_a_level_become_one_of_the_next() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let mut committed = volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    for seq in 2..=64 {
        assert_eq!(committed.compaction_due, seq % 8 == 1 && seq > 2);
        compact_all(&volume, &MergeLimits::USUAL).await;
        committed = volume.commit(MemoryCut::new(seq, &[(seq % 2 * 4, 8, seq)]), SIZE).await.unwrap();
    }
    assert_eq!(packs(&volume).await, 7 + LEVEL_RUNS_MAX);
    let first = volume.compact().await.unwrap().unwrap();
    assert_eq!((first.crowd.packs, first.compaction_due), (8, true));
    let second = volume.compact().await.unwrap().unwrap();
    assert_eq!((second.crowd.packs, second.compaction_due), (1, false));
    assert_eq!(volume.compact().await.unwrap(), None);
    let view = volume.view().await.unwrap();
    assert_eq!((view.crowd().fan_out, view.manifest().packs[0].level), (1, 2));
    tags(&volume, range(0, 14), &[vec![64; 8], vec![63; 4], vec![0; 2]].concat()).await;
}

#[tokio::test]
async fn whatever_is_written_the_content_stays_and_the_packs_are_few() {
    for seed in [0, 1, 2, 5, 6, 8] {
        let entropy = Seeded::new(seed);
        let daemon = World::seeded(seed).daemon(1);
        let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        // In some seeds steps end early and packs stay as they are: every pack counts as long then.
        let young_bytes_min = if seed % 3 == 0 { 100_000 } else { u64::MAX };
        let limits = if seed % 2 == 0 {
            // And some indexes are longer than the windows of a merge, and loaded more often than one step may.
            let (windows_bytes_max, loaded_bytes_max) =
                if seed < 6 { (1 << 20, 1 << 20) } else { (2000, 3000) };
            MergeLimits {
                step_bytes_max: 5000,
                young_bytes_min,
                move_bytes_min: 200,
                pack_bytes: Some(2000),
                windows_bytes_max,
                loaded_bytes_max,
            }
        } else {
            MergeLimits {
                young_bytes_min,
                move_bytes_min: if seed % 4 == 1 { 10_000 } else { u64::MAX },
                ..PLAIN
            }
        };
        let sectors = if seed % 5 == 0 { 300 } else { 4000 };
        let mut model = BTreeMap::new();
        for seq in 1..150 {
            write(&volume, &entropy, &mut model, seq, sectors).await;
            match entropy.next_u64() % 3 {
                // One step only: a merge may stay unfinished.
                0 => drop(volume.compact_within(&limits).await.unwrap()),
                1 => drop(compact_all(&volume, &limits).await),
                _ => {}
            }
            if seq % 10 == 0 {
                check(&volume, &model, sectors).await;
            }
        }
        compact_all(&volume, &limits).await;
        check(&volume, &model, sectors).await;
        let fan_out = volume.crowd().unwrap().fan_out;
        assert!(fan_out <= 3 * (LEVEL_RUNS_MAX - 1), "seed {seed}: {fan_out} packs");
    }
}

#[tokio::test]
async fn what_is_written_in_order_is_not_copied_again_and_again() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let limits = MergeLimits { move_bytes_min: 800, young_bytes_min: 10_000, ..PLAIN };
    let mut written = 0;
    for seq in 1..=200 {
        volume.commit(MemoryCut::new(seq, &[(seq * 100, 100, seq * 2 + 1)]), SIZE).await.unwrap();
        let before = stored_bytes(&daemon, &volume).await;
        compact_all(&volume, &limits).await;
        written += stored_bytes(&daemon, &volume).await - before;
    }
    assert_eq!(written, 0);
    for seq in [1, 50, 200] {
        tags(&volume, range(seq * 100, 100), &[seq * 2 + 1; 100]).await;
    }
    // Short packs are merged.
    let limits = MergeLimits { move_bytes_min: 40_000, ..limits };
    let volume = daemon.volumes.create(&name("small"), SIZE).await.unwrap();
    for seq in 1..=200 {
        volume.commit(MemoryCut::new(seq, &[(seq * 4, 4, seq * 2 + 1)]), SIZE).await.unwrap();
        compact_all(&volume, &limits).await;
    }
    assert!(packs(&volume).await < 30, "{}", packs(&volume).await);
}

/// A client that wrote the same file from beginning to end again and again once had all of the file compressed again by each merge.
#[tokio::test]
async fn what_is_overwritten_in_long_runs_is_not_copied_but_what_an_older_pack_shows_through_is() {
    let daemon = World::new().daemon(1);
    let limits = MergeLimits { move_bytes_min: 800, ..PLAIN };
    for (name_of, gap) in [("whole", 0), ("gaps", 4)] {
        let volume = daemon.volumes.create(&name(name_of), SIZE).await.unwrap();
        let mut written = 0;
        for seq in 1..=64 {
            let tag = seq * 2 + 1;
            // In the second volume the last cut leaves a gap, in which older content counts.
            let gap = if seq == 64 { gap } else { 0 };
            let runs = [(0, 100, tag), (100 + gap, 100 - gap, tag)];
            volume.commit(MemoryCut::new(seq, &runs), SIZE).await.unwrap();
            let before = stored_bytes(&daemon, &volume).await;
            compact_all(&volume, &limits).await;
            written += stored_bytes(&daemon, &volume).await - before;
        }
        let expected = [vec![129; 100], vec![127; gap as usize], vec![129; 100 - gap as usize]].concat();
        tags(&volume, range(0, 200), &expected).await;
        assert_eq!(written > 0, gap > 0, "{written} bytes");
        // The content of packs below shows nowhere, also when the pack above begins or ends elsewhere.
        let mut expected = [expected, vec![0; 200]].concat();
        for step in 0..8 {
            let (start, sectors, tag) = (50 + step * 20, 300 - step * 30, 131 + step * 2);
            volume.commit(MemoryCut::new(65 + step, &[(start, sectors, tag)]), SIZE).await.unwrap();
            expected.resize(expected.len().max((start + sectors) as usize), 0);
            expected[start as usize..(start + sectors) as usize].fill(tag);
        }
        assert!(compact_all(&volume, &limits).await > 0);
        tags(&volume, range(0, 400), &expected).await;
    }
}

#[tokio::test]
async fn what_was_overwritten_and_discarded_goes() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let limits = MergeLimits { young_bytes_min: 1, ..PLAIN };
    for seq in 1..=100 {
        volume.commit(MemoryCut::new(seq, &[(0, 400, seq * 2 + 1)]), SIZE).await.unwrap();
        compact_all(&volume, &limits).await;
        let view = volume.view().await.unwrap();
        let bytes: u64 = view.manifest().packs.iter().map(|pack| pack.total_bytes).sum();
        assert!(bytes < 4 * 400 * 512, "{bytes} bytes");
    }
    // Half of the data is discarded: after eight cuts a step notices.
    for seq in 101..=108 {
        volume.commit(MemoryCut::new(seq, &[(0, 150, 0), (350, 60, 0)]), SIZE).await.unwrap();
        compact_all(&volume, &limits).await;
    }
    assert_eq!(volume.mapped(range(0, SIZE)).await.unwrap(), [range(150, 200)]);
    let view = volume.view().await.unwrap();
    assert_eq!(view.manifest().packs.iter().map(|pack| pack.data_bytes).sum::<u64>(), 200 * 512);
    // The other half is discarded.
    for seq in 109..=116 {
        volume.commit(MemoryCut::new(seq, &[(0, 400, 0)]), SIZE).await.unwrap();
        compact_all(&volume, &limits).await;
    }
    let view = volume.view().await.unwrap();
    assert!(view.manifest().packs.iter().all(|pack| pack.data_bytes == 0));
    tags(&volume, range(0, 400), &[0; 400]).await;
}

#[tokio::test]
async fn zeroes_over_older_data_stay_until_nothing_is_below() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 100, seq)]), SIZE).await.unwrap();
    }
    compact_all(&volume, &PLAIN).await;
    for seq in 9..=16 {
        volume.commit(MemoryCut::new(seq, &[(seq, 1, 0)]), SIZE).await.unwrap();
    }
    compact_all(&volume, &PLAIN).await;
    assert_eq!(packs(&volume).await, 2);
    let expected: Vec<Tag> = [vec![8; 9], vec![0; 8], vec![8; 83]].concat();
    tags(&volume, range(0, 100), &expected).await;
}

#[tokio::test]
async fn commits_go_on_during_a_step_and_another_state_ends_it() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.snapshot(&name("empty")).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
    }
    for rollback in [false, true] {
        world.objects.pause_before("packs");
        let compaction = {
            let volume = volume.clone();
            tokio::spawn(async move { volume.compact().await })
        };
        world.objects.paused().await;
        if rollback {
            volume.rollback(&name("empty")).await.unwrap();
        } else {
            volume.commit(MemoryCut::new(9, &[(0, 4, 9)]), SIZE).await.unwrap();
        }
        world.objects.resume();
        let compacted = compaction.await.unwrap().unwrap();
        assert_eq!(compacted.is_some(), !rollback);
        if !rollback {
            tags(&volume, range(0, 8), &[9, 9, 9, 9, 4, 5, 6, 7]).await;
            for seq in 10..=17 {
                volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
            }
        }
    }
    tags(&volume, range(0, 30), &[0; 30]).await;
    assert_eq!(packs(&volume).await, 0);
}

#[tokio::test]
async fn a_small_memory_for_metadata_makes_compaction_no_wrong_and_not_endless() {
    let world = World::new();
    let backend = crate::store::Backend::over(world.objects.clone(), true);
    let daemon = world.daemon_over(1, backend, 100);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let (entropy, mut model) = (Seeded::new(9), BTreeMap::new());
    for seq in 1..=64 {
        write(&volume, &entropy, &mut model, seq, 4000).await;
        compact_all(&volume, &PLAIN).await;
    }
    check(&volume, &model, 4000).await;
    let store = daemon.volumes.store();
    assert!(store.list(Folder::Packs(volume.id()), None).await.unwrap().len() >= 64);
}

#[tokio::test]
async fn packs_that_were_just_uploaded_are_merged_without_reading_the_store() {
    for (recent_bytes_max, reads) in [(1 << 20, 0), (1, 16)] {
        let daemon = World::new().daemon_with_recent(1, recent_bytes_max);
        let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        for seq in 1..=8 {
            volume.commit(MemoryCut::new(seq, &[(seq * 4, 8, seq)]), SIZE).await.unwrap();
        }
        let before = daemon.requests();
        let compacted = volume.compact().await.unwrap().unwrap();
        assert_eq!(compacted.crowd.packs, 1);
        assert_eq!(daemon.since(before)[0], reads, "index and data of each pack, or nothing");
        let expected: Vec<Tag> = (0..40).map(|at| if at < 4 { 0 } else { (at / 4).min(8) }).collect();
        tags(&volume, range(0, 40), &expected).await;
    }
}

/// A merge once waited for whole blocks first, and then for the others.
#[tokio::test(start_paused = true)]
async fn a_merge_waits_once_for_indexes_and_once_for_blocks() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    // Of the first pack one block stays whole, and a part of the other.
    volume.commit(MemoryCut::new(1, &[(0, 256, 1)]), SIZE).await.unwrap();
    for seq in 2..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 4, seq)]), SIZE).await.unwrap();
    }
    world.objects.read_for(1000);
    let begun = Instant::now();
    assert_eq!(volume.compact().await.unwrap().unwrap().crowd.packs, 1);
    assert_eq!(begun.elapsed().as_secs(), 2, "by the clock of the runtime");
    tags(&volume, range(0, 256), &[vec![8; 4], vec![1; 252]].concat()).await;
}

#[tokio::test]
async fn packs_that_leave_memory_are_read_from_the_store() {
    let daemon = World::new().daemon_with_recent(1, 3000);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let (entropy, mut model) = (Seeded::new(3), BTreeMap::new());
    for seq in 1..100 {
        write(&volume, &entropy, &mut model, seq, 3000).await;
        drop(volume.compact_within(&PLAIN).await.unwrap());
        if seq % 10 == 0 {
            check(&volume, &model, 3000).await;
        }
    }
}

#[test]
fn a_volume_that_no_manifest_can_list_is_refused_with_the_largest_size() {
    let sectors = VOLUME_BYTES_MAX / 512;
    let error = check_size(sectors + 1).unwrap_err();
    assert!(matches!(error, VolumeError::TooLarge { size_bytes } if size_bytes == VOLUME_BYTES_MAX + 512));
    assert!(error.to_string().contains("(16 TiB) is the most"), "{error}");
    check_size(sectors).unwrap();
}

#[tokio::test]
async fn a_cut_that_no_manifest_can_list_uploads_nothing_and_other_volumes_go_on() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("full"), SIZE).await.unwrap();
    let other = daemon.volumes.create(&name("other"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let pack = volume.view().await.unwrap().manifest().packs[0];
    // The manifest lists packs that do not exist.
    let fill = |base: &Manifest| {
        let count = PACKS_MAX as u64 - 1;
        let packs = (0..count).map(|at| PackRef { lowest_sector: at, highest_sector: at, level: 1, ..pack });
        Some(Manifest { packs: packs.collect(), ..base.clone() })
    };
    volume.publish(&NewPacks::default(), fill).await.unwrap().unwrap();
    let crowd = volume.crowd().unwrap();
    assert_eq!((crowd.packs, crowd.percent()), (PACKS_MAX - 1, 100), "its writers are stopped");
    let before = daemon.requests();
    for _ in 0..3 {
        let error = volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap_err();
        assert!(matches!(error, VolumeError::TooManyPacks { packs } if packs == PACKS_MAX - 1), "{error}");
        assert!(error.is_transient() && !error.is_fatal());
    }
    assert_eq!(daemon.since(before), [0; 5], "nothing is uploaded again and again");
    other.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
}

#[tokio::test]
async fn a_step_that_finds_its_base_overtaken_does_not_say_that_nothing_is_due() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), 1 << 16).await.unwrap();
    for seq in 1..=128 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), 1 << 16).await.unwrap();
    }
    // The answer to the first step is lost.
    world.objects.fail_creations("manifests", 1, true);
    volume.compact().await.unwrap_err();
    world.clock.advance(std::time::Duration::from_millis(5));
    let (second, third) = (volume.compact().await.unwrap(), volume.compact().await.unwrap());
    assert!(second.is_some() || third.is_none(), "\"none is due\", and then {third:?}");
}
