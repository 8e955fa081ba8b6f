//! A step of compaction at work: packs are read in the order of their sectors, and packed anew.
//!
//! Owns reading, packing and uploading within a step. Does not own which packs are merged (`plan`), nor the manifest that lists
//! the results (`compact`). Invariant: the results have, for each sector before the end of the step, the newest content among the
//! merged packs.
//!
//! A pack that is missing or damaged may be restored, so nothing is given up: the step ends where the pack is needed first.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::try_join;

use super::plan::{MergeLimits, PlannedStep, stored_bytes};
use crate::store::format::{
    BLOCK_BYTES_MAX, Codec, EncodedPack, IndexEntry, Manifest, PACK_BYTES_TARGET, PACKS_MAX, PackBuilder,
    PackIndex, PackRef,
};
use crate::store::ids::PackId;
use crate::store::volume::error::blocking;
use crate::store::volume::error::{VolumeError, bad_cut};
use crate::store::volume::limits::MERGED_BYTES_MAX;
use crate::store::volume::types::ReadExtent;
use crate::store::volume::types::{between, reach};
use crate::store::volume::view::resolve::{Content, Part, Resolution};
use crate::store::volume::view::rows::Rows;
use crate::store::volume::writer::VolumeWriter;
use crate::store::volume::writer::new_packs::NewPacks;
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

/// Bytes of data read at once.
const BATCH_BYTES: u64 = 8 << 20;
/// Parts read at once, zeroes included.
const BATCH_PARTS: usize = 1 << 15;
/// Packs that a whole volume should have at most when it is one run.
const MERGED_PACKS: u64 = PACKS_MAX as u64 / 4;
/// Cost of a part besides its data, bytes: so a step through nothing but zeroes ends as well.
const PART_BYTES: u64 = 64;
/// Entries of an index resolved at once.
const RESOLVED_ENTRIES: usize = 64;
/// Most zero ranges of the results that a step remembers: they only count what was discarded.
const ZEROES_MAX: usize = 1 << 18;

/// The entries of an input from some sector on, before sector `end`. Indexes may be long, and a step have many inputs: together the
/// windows take a bounded memory, and an index that does not fit is loaded again for its next window.
#[derive(Debug)]
struct Window {
    index: PackIndex,
    end: u64,
}

type Opened = (PackRef, Arc<Window>);

/// A step of compaction at work.
pub(in crate::store::volume) struct Merge {
    volume: VolumeWriter,
    /// The packs to merge, newest first.
    pub inputs: Vec<PackRef>,
    rows: Rows,
    /// No pack is older, and the step merges all inputs completely: the results need no zeroes.
    pub last: bool,
    level: u8,
    last_seq: Seq,
    step_bytes_max: u64,
    move_bytes_min: u64,
    /// Length of the packs made by the step, bytes.
    pack_bytes: u64,
    /// Cost of the parts resolved so far, bytes.
    spent_bytes: u64,
    /// Sectors before this one are merged.
    pub at: u64,
    pub ended_early: bool,
    /// Packs in place of the inputs, ascending.
    pub outputs: Vec<PackRef>,
    /// The part of `outputs` uploaded by the step; the other outputs are inputs taken over unchanged.
    made: Vec<PackRef>,
    /// Time before the first upload.
    begun: Duration,
    /// Number of the manifest with the inputs.
    after: u64,
    builder: Option<PackBuilder>,
    /// Windows of the inputs around sector `at`.
    windows: HashMap<PackId, Arc<Window>>,
    /// Most entries of a window.
    window_entries: usize,
    /// Columns of the indexes loaded so far, bytes.
    loaded_bytes: u64,
    loaded_bytes_max: u64,
    /// Zero ranges of the results, ascending: the first [`ZEROES_MAX`].
    pub zeroes: Vec<SectorRange>,
    /// The pack that could not be read where the step ended, and why.
    pub unread: Option<(PackId, VolumeError)>,
    /// Resolved parts waiting to be written, ascending.
    batch: Vec<Part>,
    /// The packs whose positions are in `batch`.
    batch_packs: Vec<PackRef>,
    batch_bytes: u64,
}

impl Merge {
    pub fn new(volume: VolumeWriter, manifest: &Manifest, step: &PlannedStep, limits: &MergeLimits) -> Self {
        let inputs = manifest.packs[step.inputs.clone()].to_vec();
        let begun = volume.host.options.clock.since_boot();
        let pack_bytes = limits.pack_bytes.unwrap_or_else(|| merged_pack_bytes(manifest.size_sectors));
        let rows = Rows::of(&inputs);
        // A sector is in one pack of each row at most.
        let window_bytes = limits.windows_bytes_max / rows.crowd().fan_out.max(1);
        let window_entries = (window_bytes / size_of::<IndexEntry>()).max(1);
        let index_bytes: u64 = inputs.iter().map(|pack| u64::from(pack.index_plain_bytes)).sum();
        let fits = inputs.iter().all(|pack| pack.entries as usize <= window_entries);
        let (index_bytes_max, step_bytes_max) = (limits.loaded_bytes_max, limits.step_bytes_max);
        let whole = fits && index_bytes <= index_bytes_max && stored_bytes(&inputs) <= step_bytes_max;
        Self {
            rows,
            inputs,
            last: whole && step.inputs.end == manifest.packs.len(),
            level: step.level,
            last_seq: manifest.cut,
            step_bytes_max: if whole { u64::MAX } else { step_bytes_max },
            // A manifest has no room for many short packs of a large volume.
            move_bytes_min: limits.move_bytes_min.saturating_mul((pack_bytes / PACK_BYTES_TARGET).max(1)),
            pack_bytes,
            spent_bytes: 0,
            at: step.begin,
            ended_early: false,
            outputs: Vec::new(),
            made: Vec::new(),
            begun,
            after: manifest.number,
            builder: None,
            windows: HashMap::new(),
            loaded_bytes: 0,
            loaded_bytes_max: limits.loaded_bytes_max,
            window_entries,
            zeroes: Vec::new(),
            unread: None,
            batch: Vec::new(),
            batch_packs: Vec::new(),
            batch_bytes: 0,
            volume,
        }
    }

    /// Packs uploaded by the step.
    pub fn uploads(&self) -> NewPacks {
        NewPacks::since(self.begun, self.after, self.made.iter().copied())
    }

    /// Merges the rest of the inputs, or as much as one step may.
    pub async fn run(&mut self) -> Result<(), VolumeError> {
        // One pack is in memory at a time.
        let entries_max = self.rows.entries_max(&self.inputs, self.window_entries as u64);
        let windows_bytes = entries_max.saturating_mul(size_of::<IndexEntry>() as u64);
        let bytes = self.pack_bytes.saturating_add(windows_bytes);
        let _permit = self.volume.host.merge_memory(bytes).await?;
        while !self.ended_early && self.look_up().await? {
            if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_PARTS {
                self.write_batch().await?;
            }
            // A step ends with a full pack, because a short pack would cut a run in two.
            self.ended_early |= self.is_spent() && self.batch.is_empty() && self.builder.is_none();
            // A whole merge loads each index once, and so does not get there. Any step merges something.
            let has_merged = !(self.batch.is_empty() && self.builder.is_none() && self.outputs.is_empty());
            self.ended_early |= self.loaded_bytes > self.loaded_bytes_max && has_merged;
        }
        self.finish_pack().await
    }

    /// Resolves some more sectors. Returns the memory of the windows, bytes.
    #[cfg(test)]
    pub async fn look_on(&mut self) -> Result<usize, VolumeError> {
        self.look_up().await?;
        Ok(self.windows.values().map(|window| window.index.memory_bytes()).sum())
    }

    fn is_spent(&self) -> bool {
        self.spent_bytes >= self.step_bytes_max
    }

    /// Resolves some more sectors. `false` when no sectors are left.
    async fn look_up(&mut self) -> Result<bool, VolumeError> {
        let at = self.at;
        let Some(opened) = self.open(at).await? else { return Ok(true) };
        let later = self.rows.next_begin(&self.inputs, at);
        let next = opened.iter().filter_map(|(_, window)| window.next_sector(at)).chain(later).min();
        let Some(next) = next else { return Ok(false) };
        if next > at {
            self.at = next;
            return Ok(true);
        }
        if let Some((pack, window)) = opened.first()
            && self.moves(pack, &window.index)
            && self.end_long_pack().await?
        {
            self.outputs.push(PackRef { level: self.level, ..*pack });
            if !self.last {
                let zeroes = window.index.entries().iter().filter(|entry| entry.codec == Codec::Zero);
                zeroes.for_each(|entry| self.note_zeroes(entry.range));
            }
            self.spent_bytes += u64::from(pack.index_stored_bytes) + PART_BYTES;
            self.at = pack.highest_sector + 1;
            return Ok(true);
        }
        if self.ended_early {
            return Ok(true);
        }
        let resolved_end = |(pack, window): &Opened| {
            let entries = window.index.entries();
            let first = entries.partition_point(|entry| entry.range.end() <= at);
            let end = entries.get(first.saturating_add(RESOLVED_ENTRIES)).map(|entry| entry.range.start());
            end.unwrap_or(window.end.min(pack.highest_sector + 1))
        };
        let end = opened.iter().map(resolved_end).chain(later).min().unwrap_or(at + 1);
        let mut resolution = Resolution::new(between(at, end));
        for (pack, window) in &opened {
            resolution.look_up(pack, &window.index);
        }
        let (packs, parts) = resolution.finish();
        for part in parts {
            self.spent_bytes += PART_BYTES;
            let content = match part.content {
                Content::Block(number, entry) => {
                    self.batch_bytes += part.range.count() * SECTOR_BYTES;
                    self.spent_bytes += part.range.count() * SECTOR_BYTES;
                    Content::Block(self.place_in_batch(&packs[number]), entry)
                }
                Content::Zero if !self.last => {
                    self.note_zeroes(part.range);
                    Content::Zero
                }
                Content::Zero | Content::Absent => continue,
            };
            self.batch.push(Part { content, ..part });
        }
        self.at = end;
        Ok(true)
    }

    fn note_zeroes(&mut self, range: SectorRange) {
        if self.zeroes.len() < ZEROES_MAX {
            self.zeroes.push(range);
        }
    }

    /// The inputs that may have something of sector `at`, with their windows. From call to call `at` does not go back. `None` when the
    /// step ends here, because an index cannot be had.
    async fn open(&mut self, at: u64) -> Result<Option<Vec<Opened>>, VolumeError> {
        self.windows.retain(|_, window| window.end > at);
        let packs = || self.rows.reaching(&self.inputs, between(at, at.saturating_add(1)));
        let loaded = packs().filter(|pack| !self.windows.contains_key(&pack.pack));
        let loaded_bytes: u64 = loaded.map(|pack| u64::from(pack.index_plain_bytes)).sum();
        let host = &self.volume.host;
        let opened = packs().map(|pack| async {
            let window = match self.windows.get(&pack.pack) {
                Some(window) => window.clone(),
                None => {
                    let index = host.reader.index(&host.store, pack).await;
                    let index = index.map_err(|error| (pack.pack, error.into()))?;
                    let (index, end) = index.part(between(at, u64::MAX), self.window_entries);
                    Arc::new(Window { index, end })
                }
            };
            Ok::<_, (PackId, VolumeError)>((*pack, window))
        });
        match try_join_all(opened).await {
            Ok(opened) => {
                self.loaded_bytes = self.loaded_bytes.saturating_add(loaded_bytes);
                self.windows = opened.iter().map(|(pack, window)| (pack.pack, window.clone())).collect();
                Ok(Some(opened))
            }
            Err((pack, error)) if is_about_one_object(&error) => {
                self.end_without(pack, error);
                Ok(None)
            }
            Err((_, error)) => Err(error),
        }
    }

    /// Ends the step before the first sector that needs `pack`.
    fn end_without(&mut self, pack: PackId, error: VolumeError) {
        let (volume, cause) = (self.volume.id(), &error as &dyn std::error::Error);
        tracing::warn!(%volume, %pack, error = cause, "a pack cannot be read, and is left out of merging for an hour: restore it, or reads that need it fail");
        self.ended_early = true;
        self.unread = Some((pack, error));
    }

    fn place_in_batch(&mut self, pack: &PackRef) -> usize {
        let place = self.batch_packs.iter().position(|other| other.pack == pack.pack);
        place.unwrap_or_else(|| {
            self.batch_packs.push(*pack);
            self.batch_packs.len() - 1
        })
    }

    /// Whether `pack`, the newest input that reaches sector `at`, can stay as it is: long enough, and no other input counts for any
    /// sector from the pack's first to the last. Either no other input has sectors there, or the others are older and the pack has
    /// an entry for each sector, as where a client writes long runs again and again.
    fn moves(&self, pack: &PackRef, index: &PackIndex) -> bool {
        let is_whole = index.entries().len() == pack.entries as usize;
        if pack.lowest_sector != self.at || pack.total_bytes < self.move_bytes_min || !is_whole {
            return false;
        }
        let mut reaching = self.rows.reaching(&self.inputs, reach(pack));
        let is_newest = reaching.next().is_some_and(|newest| newest.pack == pack.pack);
        is_newest && (reaching.next().is_none() || index.is_gapless())
    }

    /// Ends the pack being made, unless the pack is so short as to cut a run in two.
    async fn end_long_pack(&mut self) -> Result<bool, VolumeError> {
        self.write_batch().await?;
        // The last block may not be compressed yet, and become shorter.
        let long_bytes = self.move_bytes_min.saturating_add(BLOCK_BYTES_MAX as u64);
        let is_short = self.builder.as_ref().is_some_and(|builder| builder.bytes() < long_bytes);
        if !is_short && !self.ended_early {
            self.finish_pack().await?;
        }
        Ok(!is_short && !self.ended_early)
    }

    /// The content of `parts`, which were resolved in `packs`.
    async fn read(&self, packs: &[PackRef], parts: &[Part]) -> Result<Vec<Piece>, VolumeError> {
        let host = &self.volume.host;
        let whole: Vec<_> = parts.iter().filter_map(whole_block).collect();
        let others: Vec<Part> = parts.iter().filter(|part| whole_block(part).is_none()).copied().collect();
        let (stored, extents) = try_join!(
            host.reader.stored_blocks(&host.store, packs, &whole),
            host.reader.fetch(&host.store, packs, &others, None),
        )?;
        let (mut stored, mut extents) = (stored.into_iter(), extents.into_iter());
        // Each part has its place in one of the two answers.
        let piece = |part| match whole_block(part) {
            Some((_, entry)) => stored.next().map(|stored| Piece::Block(entry, stored)),
            None => extents.next().map(Piece::Extent),
        };
        Ok(parts.iter().filter_map(piece).collect())
    }

    /// As [`Self::read`], for the parts before the first one whose block is missing or damaged; and the first sector of that one. Where
    /// one is bad, the parts are read one by one.
    async fn read_before_bad(
        &mut self,
        packs: &[PackRef],
        parts: &[Part],
    ) -> Result<(Vec<Piece>, Option<u64>), VolumeError> {
        match self.read(packs, parts).await {
            Err(error) if is_about_one_object(&error) => {}
            read => return Ok((read?, None)),
        }
        let mut pieces = Vec::new();
        for part in parts {
            match self.read(packs, std::slice::from_ref(part)).await {
                Err(error) if is_about_one_object(&error) => {
                    // A part without a block cannot fail.
                    let Some((number, _)) = part.block() else { return Err(error) };
                    self.end_without(packs[number].pack, error);
                    return Ok((pieces, Some(part.range.start())));
                }
                read => pieces.extend(read?),
            }
        }
        Ok((pieces, None))
    }

    /// Reads the batch and packs the data.
    async fn write_batch(&mut self) -> Result<(), VolumeError> {
        self.batch_bytes = 0;
        let (parts, packs) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.batch_packs));
        let (pieces, rest) = self.read_before_bad(&packs, &parts).await?;
        let (builder, volume, level, last_seq) =
            (self.builder.take(), self.volume.clone(), self.level, self.last_seq);
        let (pack_bytes, stops) = (self.pack_bytes, self.is_spent());
        let begin = move || {
            let builder = PackBuilder::new(volume.pack_options(level, Seq(0), last_seq));
            builder.map(|builder| builder.long(pack_bytes))
        };
        let packed = blocking(move || pack(builder, pieces, begin, stops)).await?;
        self.builder = packed.open;
        if let Some(rest) = packed.rest.or(rest) {
            self.ended_early = true;
            self.at = rest;
            self.zeroes.retain(|zeroes| zeroes.start() < rest);
        }
        self.upload(packed.full).await
    }

    /// Ends the pack being made.
    async fn finish_pack(&mut self) -> Result<(), VolumeError> {
        self.write_batch().await?;
        let Some(builder) = self.builder.take() else { return Ok(()) };
        let pack = blocking(move || Ok(builder.finish())).await?;
        self.upload(pack.into_iter().collect()).await
    }

    async fn upload(&mut self, packs: Vec<EncodedPack>) -> Result<(), VolumeError> {
        for pack in packs {
            let pack = self.volume.create_pack(pack).await?;
            self.outputs.push(pack);
            self.made.push(pack);
        }
        Ok(())
    }
}

/// Whether `error` is about one object in the store, and not about the store.
fn is_about_one_object(error: &VolumeError) -> bool {
    error.is_missing() || error.is_damaged()
}

impl Window {
    /// The first sector from `at` on that the input may have an entry for.
    fn next_sector(&self, at: u64) -> Option<u64> {
        let entries = self.index.entries();
        let next = entries.get(entries.partition_point(|entry| entry.range.end() <= at));
        next.map(|entry| entry.range.start().max(at)).or((self.end < u64::MAX).then_some(self.end))
    }
}

/// The block that `part` is all of, if the block can go into another pack as it is.
fn whole_block(part: &Part) -> Option<(usize, IndexEntry)> {
    part.block().filter(|(_, entry)| entry.range == part.range && entry.is_whole_block())
}

/// What a merge packs next.
enum Piece {
    Extent(ReadExtent),
    /// A whole block of an input, which stays as it is: the entry in the input's index, and the bytes in the input.
    Block(IndexEntry, Bytes),
}

/// Result of packing a batch.
struct PackedBatch {
    full: Vec<EncodedPack>,
    /// The last pack, when it is not full.
    open: Option<PackBuilder>,
    /// The first sector not packed.
    rest: Option<u64>,
}

/// Adds `pieces` to `builder`, and to new builders that `begin` makes. With `stops`, ends after the first full pack.
fn pack(
    mut builder: Option<PackBuilder>,
    pieces: Vec<Piece>,
    begin: impl Fn() -> io::Result<PackBuilder>,
    stops: bool,
) -> Result<PackedBatch, VolumeError> {
    let mut full = Vec::new();
    for piece in pieces {
        if stops && !full.is_empty() {
            let range = match piece {
                Piece::Extent(extent) => extent.range,
                Piece::Block(entry, _) => entry.range,
            };
            return Ok(PackedBatch { full, open: None, rest: Some(range.start()) });
        }
        let mut open = match builder.take() {
            Some(open) => open,
            None => begin().map_err(|error| VolumeError::Compressor(Arc::new(error)))?,
        };
        let pushed = match piece {
            Piece::Block(entry, stored) => open.push_block(&entry, stored),
            Piece::Extent(ReadExtent { range, data: Some(data) }) => open.push_data(range.start(), data),
            Piece::Extent(ReadExtent { range, data: None }) => open.push_zero(range),
        };
        pushed.map_err(bad_cut)?;
        if open.is_full() {
            full.extend(open.finish());
        } else {
            builder = Some(open);
        }
    }
    Ok(PackedBatch { full, open: builder, rest: None })
}

/// Length of merged packs of a volume of `size_sectors`, bytes: packs of a large volume are longer, so that a manifest can list
/// all packs.
fn merged_pack_bytes(size_sectors: u64) -> u64 {
    let share_bytes = size_sectors.saturating_mul(SECTOR_BYTES) / MERGED_PACKS;
    let bytes = share_bytes.max(1).checked_next_power_of_two().unwrap_or(MERGED_BYTES_MAX);
    bytes.clamp(PACK_BYTES_TARGET, MERGED_BYTES_MAX)
}
