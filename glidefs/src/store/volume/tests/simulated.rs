//! Five hours of a writer in a minute: how many packs a read may have to ask while merging goes on, in counts only.

use std::borrow::Borrow;
use std::cell::Cell;

use super::super::compact::plan::{MergeLimits, PlannedStep, plan_step, stored_bytes};
use super::super::crowd::FAN_OUT_MAX;
use super::super::types::overlaps;
use super::super::view::rows::Rows;
use super::support::*;
use crate::store::format::PackRef;
use crate::store::ids::{PackId, VolumeId};
use crate::units::SECTOR_BYTES;

const VOLUME_SECTORS: u64 = (1 << 40) / SECTOR_BYTES;
const MIB: f64 = (1 << 20) as f64;
/// Length of merged packs, and of a step: longer than real ones, for fewer packs to look at.
const PACK_BYTES: u64 = 256 << 20;
const CUT_BYTES: u64 = 32 << 20;
/// The rate wanted by a writer, and the rate of a barely slowed writer, MiB/s.
const WRITER_RATE: f64 = 50.0;
const SLOWED_RATE_MAX: f64 = 256.0;
const SECONDS: u32 = 5 * 3600;

struct Work {
    left_mib: f64,
    inputs: Vec<PackRef>,
    successors: Vec<PackRef>,
}

struct Simulation {
    packs: Vec<PackRef>,
    numbers: u64,
    work: Option<Work>,
    written_mib: f64,
    fan_out_max: usize,
}

fn pack(number: u64, level: u8, lowest_sector: u64, end: u64, total_bytes: u64) -> PackRef {
    PackRef {
        volume: VolumeId([1; 16]),
        pack: PackId(u128::from(number).to_le_bytes()),
        total_bytes,
        index_offset_bytes: 32,
        index_stored_bytes: 64,
        index_plain_bytes: 64,
        index_hash: [0; 16],
        lowest_sector,
        highest_sector: end - 1,
        level,
        data_bytes: total_bytes,
        entries: 1,
    }
}

/// The share of a pack's range with sectors in the pack.
#[expect(clippy::cast_precision_loss, reason = "the figures are far smaller")]
fn density(pack: &PackRef) -> f64 {
    let sectors = pack.highest_sector + 1 - pack.lowest_sector;
    (pack.total_bytes as f64 / (sectors * SECTOR_BYTES) as f64).min(1.0)
}

impl Simulation {
    /// A volume written once, in order.
    fn new() -> Self {
        let count = VOLUME_SECTORS * SECTOR_BYTES / PACK_BYTES;
        let sectors = PACK_BYTES / SECTOR_BYTES;
        let full = |at| pack(at, 4, at * sectors, (at + 1) * sectors, PACK_BYTES);
        let packs = (0..count).map(full).collect();
        Self { packs, numbers: count, work: None, written_mib: 0.0, fan_out_max: 0 }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A second with a merge at `merged_mib` MiB/s, read and written.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    fn second(&mut self, merged_mib: f64) {
        let crowd = Rows::of(&self.packs).crowd();
        self.fan_out_max = self.fan_out_max.max(crowd.fan_out);
        let left = f64::from(100 - crowd.percent()) / 100.0;
        let rate = (SLOWED_RATE_MAX * left * left).min(WRITER_RATE);
        let cuts = |mib: f64| (mib * MIB) as u64 / CUT_BYTES;
        let due = cuts(self.written_mib + rate) - cuts(self.written_mib);
        self.written_mib += rate;
        for _ in 0..due {
            let number = self.number();
            self.packs.insert(0, pack(number, 0, 0, VOLUME_SECTORS, CUT_BYTES));
        }
        let mut left_mib = merged_mib;
        while left_mib > 0.0 {
            let Some(mut work) = self.work.take().or_else(|| self.begin()) else { return };
            work.left_mib -= left_mib;
            left_mib = -work.left_mib;
            if work.left_mib > 0.0 {
                self.work = Some(work);
                return;
            }
            let from = self.packs.iter().position(|pack| *pack == work.inputs[0]).unwrap();
            let until = from + work.inputs.len();
            assert_eq!(self.packs[from..until], work.inputs);
            self.packs.splice(from..until, work.successors);
        }
    }

    /// Begins the next step, over sectors written at random.
    #[expect(clippy::cast_precision_loss, reason = "the figures are far smaller")]
    fn begin(&mut self) -> Option<Work> {
        let PlannedStep { inputs, level, begin } = plan_step(&self.packs, &MergeLimits::USUAL, |_| false)?;
        let inputs = self.packs[inputs].to_vec();
        let (outputs, at) = self.merged(&inputs, level, begin);
        let read = |pack: &PackRef| {
            let from = pack.lowest_sector.max(begin);
            let until = (pack.highest_sector + 1).min(at).max(from);
            density(pack) * ((until - from) * SECTOR_BYTES) as f64
        };
        let moved = inputs.iter().map(read).sum::<f64>() + stored_bytes(&outputs) as f64;
        let rest = inputs.iter().filter(|pack| pack.highest_sector >= at);
        let rest = rest.map(|pack| PackRef { level: level - 1, ..*pack });
        let successors = outputs.iter().copied().chain(rest).collect();
        Some(Work { left_mib: moved / MIB, inputs, successors })
    }

    /// One pack made of `inputs` from sector `begin` on, if the inputs have such sectors, and the sector after the pack.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the figures are far smaller"
    )]
    fn merged(&mut self, inputs: &[PackRef], level: u8, begin: u64) -> (Vec<PackRef>, u64) {
        let bounds = inputs.iter().flat_map(|pack| [pack.lowest_sector, pack.highest_sector + 1]);
        let mut bounds: Vec<u64> = bounds.map(|at| at.max(begin)).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let (mut bytes, mut from, mut end) = (0.0, None, begin);
        for pair in bounds.windows(2) {
            let here =
                inputs.iter().filter(|pack| pack.lowest_sector < pair[1] && pack.highest_sector >= pair[0]);
            let filled = 1.0 - here.map(|pack| 1.0 - density(pack)).product::<f64>();
            if filled <= 0.0 {
                continue;
            }
            let sector_bytes = filled * SECTOR_BYTES as f64;
            from.get_or_insert(pair[0]);
            let taken =
                (((PACK_BYTES as f64 - bytes) / sector_bytes).ceil() as u64).clamp(1, pair[1] - pair[0]);
            bytes += taken as f64 * sector_bytes;
            end = pair[0] + taken;
            if bytes >= PACK_BYTES as f64 {
                break;
            }
        }
        let number = self.number();
        let made = from.map(|from| pack(number, level, from, end, bytes as u64));
        (made.into_iter().collect(), end)
    }
}

#[test]
fn in_five_hours_of_random_writes_a_read_never_has_to_ask_more_packs_than_the_bound() {
    // A store fast enough for all writes, and slower ones, for which the writer has to be slowed.
    for (merged_mib, written_share_min) in [(400.0, 1.0), (200.0, 0.5), (50.0, 0.1)] {
        let mut simulation = Simulation::new();
        for _ in 0..SECONDS {
            simulation.second(merged_mib);
        }
        let share = simulation.written_mib / (WRITER_RATE * f64::from(SECONDS));
        println!("{merged_mib} MiB/s: {} packs to ask at most, {share:.2} written", simulation.fan_out_max);
        assert!(simulation.fan_out_max <= FAN_OUT_MAX, "{merged_mib}: {} packs", simulation.fan_out_max);
        assert!(share >= written_share_min, "{merged_mib}: {share} of what the writer wants");
    }
}

#[test]
fn new_packs_are_merged_while_a_long_merge_of_old_ones_is_unfinished() {
    let long = |number, level| pack(number, level, 0, VOLUME_SECTORS, CUT_BYTES);
    let half = |number| pack(number, 4, 0, VOLUME_SECTORS / 2, PACK_BYTES);
    // Results of an unfinished merge from level 3 to 4, and the rest of that merge.
    let old = [vec![half(100)], (0..8).map(|at| long(200 + at, 3)).collect()].concat();
    let rest = PlannedStep { inputs: 1..9, level: 4, begin: VOLUME_SECTORS / 2 };
    assert_eq!(plan_step(&old, &MergeLimits::USUAL, |_| false), Some(rest));
    for level in 0..3 {
        let new: Vec<PackRef> = (0..8).map(|at| long(at, level)).collect();
        let first = PlannedStep { inputs: 0..8, level: level + 1, begin: 0 };
        assert_eq!(plan_step(&[&new[..], &old].concat(), &MergeLimits::USUAL, |_| false), Some(first));
    }
    // The merge of a level takes neither results of another merge nor the rest of another merge.
    let above: Vec<PackRef> = (0..8).map(|at| long(at, 4)).collect();
    let rest = PlannedStep { inputs: 9..17, level: 4, begin: VOLUME_SECTORS / 2 };
    assert_eq!(plan_step(&[&above[..], &old].concat(), &MergeLimits::USUAL, |_| false), Some(rest));
}

#[test]
fn rows_find_the_packs_that_a_look_at_each_finds() {
    let entropy = crate::store::faulty::Seeded::new(7);
    let random = |below: u64| crate::store::ids::Entropy::next_u64(&entropy) % below;
    for _ in 0..200 {
        let count = random(40);
        let packs: Vec<PackRef> = (0..count)
            .map(|number| {
                let from = random(100);
                pack(number, 0, from, from + 1 + random(30), 100)
            })
            .collect();
        let rows = Rows::of(&packs);
        for _ in 0..20 {
            let range = range(random(140), random(20));
            let found: Vec<&PackRef> = rows.reaching(&packs, range).collect();
            let expected: Vec<&PackRef> = packs.iter().filter(|pack| overlaps(pack, range)).collect();
            assert_eq!(found, expected);
            let begins = packs.iter().map(|pack| pack.lowest_sector).filter(|lowest| *lowest > range.start());
            assert_eq!(rows.next_begin(&packs, range.start()), begins.min());
        }
    }
}

/// A pack that counts how often it is looked at.
struct Counted<'a> {
    pack: PackRef,
    looks: &'a Cell<u32>,
}

impl Borrow<PackRef> for Counted<'_> {
    fn borrow(&self) -> &PackRef {
        self.looks.set(self.looks.get() + 1);
        &self.pack
    }
}

/// Most looks that finding the packs of one sector, and the next pack after the sector, may take: among `count` packs in `rows`
/// rows, each over the whole volume.
fn looks_max(count: u64, rows: u64) -> u32 {
    let (per_row, looks) = (count / rows, Cell::new(0));
    // Each pack has eight sectors; the next four sectors are in no pack.
    let packs: Vec<PackRef> =
        (0..count).map(|n| pack(n, 0, n % per_row * 12, n % per_row * 12 + 8, 100)).collect();
    let found = Rows::of(&packs);
    assert_eq!(found.crowd().fan_out as u64, rows);
    let counted: Vec<_> = packs.iter().map(|pack| Counted { pack: *pack, looks: &looks }).collect();
    let mut looks_max = 0;
    for at in 0..per_row * 12 {
        looks.set(0);
        let reaching = found.reaching(&counted, range(at, 1)).count() as u64;
        assert_eq!(reaching, if at % 12 < 8 { rows } else { 0 });
        looks_max = looks_max.max(looks.get());
        looks.set(0);
        let next = (at / 12 + 1) * 12;
        assert_eq!(found.next_begin(&counted, at), (next < per_row * 12).then_some(next));
        looks_max = looks_max.max(looks.get());
    }
    looks_max
}

#[test]
fn the_packs_of_a_sector_are_found_among_20480_with_three_looks_a_row_more_than_among_4096() {
    for rows in [1, 8] {
        let [few, many] = [4096, 20_480].map(|count| looks_max(count, rows));
        println!("{rows} rows: {few} looks among 4,096 packs, {many} among 20,480");
        // Bisecting each row, the packs found, and one more pack of each row.
        let bound =
            |count: u64| u32::try_from(rows).unwrap() * ((count / rows).next_power_of_two().ilog2() + 3);
        assert!(few <= bound(4096), "{rows} rows: {few} looks at 4,096 packs");
        assert!(many <= bound(20_480), "{rows} rows: {many} looks at 20,480 packs");
        assert!(many - few <= 3 * u32::try_from(rows).unwrap(), "{rows} rows: {few} and {many} looks");
    }
}
