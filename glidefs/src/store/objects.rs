//! Whole objects: opening a store, and reading and creating objects of every format.
//!
//! Owns which key has which format, and the check of every object before use. Does not own policies. Invariant: an object that
//! fails the check is read once more, since bytes also change on their way; a second failure is an error. The marker has no
//! checksum: the bytes of the marker count when two reads agree.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat};
use futures_util::future::join_all;
use tokio::time::Instant;
use uuid::Uuid;

use super::client::{Created, Store};
use super::clock::{StoreClock, SystemClock};
use super::error::{StoreError, unfit};
use super::format::{
    Candidates, Codec, EncodedPack, FormatError, IndexEntry, Manifest, Marker, NameRecord, PackIndex,
    PackRef, Snapshot, decode_block,
};
use super::ids::{StoreName, VolumeId};
use super::key::{Folder, Key};
use super::stats::Operation;

/// Longest object that is read whole, bytes: more than the longest manifest.
const OBJECT_BYTES_MAX: u64 = 64 << 20;
/// From this number of entries on, decoding an index takes milliseconds.
const LONG_INDEX_ENTRIES: u32 = 1 << 15;
/// Objects of a listing of manifests, unless there are fewer: what most stores answer to one request.
const MANIFESTS_LISTED: usize = 1000;
/// How often an object that fails the check is read.
const READS_MAX: usize = 2;
/// Creations of the marker of a new store, of which one may succeed.
const MARKERS: usize = 4;
/// How often an object without a checksum is read while no two reads agree.
const READS_UNLIKE_MAX: u32 = 4;

/// What the caller may do with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only: nothing in the store is changed.
    ReadOnly,
    /// A place without a store becomes one.
    ReadWrite,
    /// The store is written to, and has to be this one.
    Known(Uuid),
}

impl Store {
    /// Checks that the place is a store, or makes the place a store. For a caller that writes, also checks that the store refuses
    /// to replace objects.
    pub async fn check(&self, access: Access) -> Result<Marker, StoreError> {
        let checked = self.check_place(access).await;
        if checked.is_ok() || !self.is_open() {
            self.stats().health.note_place(checked.as_ref().err());
        }
        checked
    }

    async fn check_place(&self, access: Access) -> Result<Marker, StoreError> {
        let location = || self.location().to_owned();
        if let (Access::ReadWrite, Some(directory)) = (access, self.inner.backend.directory.clone()) {
            let place = location();
            // The thread does not panic; where the runtime ends before it, the look fails.
            tokio::task::spawn_blocking(move || directory.make(&place)).await.unwrap_or(Ok(()))?;
        }
        let found = match (self.marker().await, access) {
            (Err(error), Access::ReadWrite) if error.is_missing() => {
                if self.volumes().await?.is_empty() {
                    if let Some(found) = self.foreign().await? {
                        return Err(StoreError::Occupied { location: location(), found });
                    }
                    self.make_marker().await?;
                }
                // Another daemon may have made the store meanwhile, and the volumes.
                self.marker().await
            }
            (found, _) => found,
        };
        let (marker, bytes) = match (found, access) {
            (Ok((Marker { store_id, .. }, _)), Access::Known(known)) if store_id != known => {
                return Err(StoreError::Another { location: location(), found: store_id, known });
            }
            (Ok(found), _) => found,
            (Err(StoreError::OtherVersion { source, .. }), Access::Known(_)) => {
                return Err(StoreError::Newer { location: location(), source });
            }
            (Err(StoreError::Damaged { source, .. }), Access::Known(known)) => {
                return Err(StoreError::Away { location: location(), known, source: Some(Box::new(source)) });
            }
            (Err(StoreError::Damaged { source, .. } | StoreError::OtherVersion { source, .. }), _) => {
                return Err(StoreError::Foreign { location: location(), source });
            }
            (Err(error), access) if error.is_missing() => {
                return Err(match access {
                    // The directory may also be a mount point whose file system is not mounted yet.
                    Access::Known(known) => StoreError::Away { location: location(), known, source: None },
                    Access::ReadOnly => StoreError::NotAStore { location: location() },
                    Access::ReadWrite => StoreError::Unmarked { location: location() },
                });
            }
            (Err(error), _) => return Err(error),
        };
        // The store has to create an object only where no object is, which keeps two writers of a volume apart. One that does not
        // refuse replaces the marker by the same bytes.
        if access != Access::ReadOnly && self.try_put(&Key::Marker, &[bytes]).await?.0 == Created::Created {
            return Err(StoreError::Replaces { location: location() });
        }
        if let Some(directory) = self.inner.backend.directory.clone() {
            let kept = tokio::task::spawn_blocking(move || directory.keep()).await;
            // An error here means that the file system was unmounted a moment ago.
            let kept = kept.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            kept.map_err(|error| StoreError::Away {
                location: location(),
                known: marker.store_id,
                source: Some(Box::new(error)),
            })?;
        }
        self.inner.is_open.store(true, Ordering::Release);
        Ok(marker)
    }

    /// Creates the marker, by several requests at once: a place may keep the condition of creations, and not in a race.
    async fn make_marker(&self) -> Result<(), StoreError> {
        let creations = (0..MARKERS).map(|_| async {
            let marker = new_marker(self).encode().into();
            self.create(&Key::Marker, &[marker]).await
        });
        let created = join_all(creations).await;
        let winners = created.iter().filter(|created| matches!(created, Ok(Created::Created))).count();
        if winners > 1 {
            self.delete(&[Key::Marker]).await?;
            return Err(StoreError::Replaces { location: self.location().to_owned() });
        }
        created.into_iter().collect::<Result<Vec<_>, _>>()?;
        // Without a winner another daemon was faster: its marker counts.
        if winners == 1 {
            tracing::info!(url = self.location(), "made a new store");
        }
        Ok(())
    }

    /// The decoded marker and its bytes.
    async fn marker(&self) -> Result<(Marker, Bytes), StoreError> {
        let look = || async {
            let bytes = self.get_alike(&Key::Marker).await?;
            Ok(Marker::decode(&bytes).map(|marker| (marker, bytes)))
        };
        self.until_intact(&Key::Marker, look).await
    }

    /// The bytes of an object without a checksum: two reads have to agree, since bytes also change on their way.
    async fn get_alike(&self, key: &Key) -> Result<Bytes, StoreError> {
        let begun = Instant::now();
        let mut found = Vec::new();
        for _ in 0..READS_UNLIKE_MAX {
            let bytes = self.get(key, OBJECT_BYTES_MAX).await?;
            if found.contains(&bytes) {
                self.stats().damaged.add(found.len() as u64 - 1);
                return Ok(bytes);
            }
            found.push(bytes);
        }
        self.stats().damaged.add(found.len() as u64);
        Err(StoreError::Unreachable {
            operation: Operation::Get,
            key: key.to_string(),
            tries: READS_UNLIKE_MAX,
            elapsed: begun.elapsed(),
            source: "no two answers have the same bytes".into(),
        })
    }

    /// Creates the manifest. [`Created::Existed`]: another writer was faster, unless an earlier call for the same number failed
    /// with an error with [`StoreError::is_transient`]. Then the writer id in the existing manifest tells who wrote the manifest.
    pub async fn create_manifest(&self, manifest: &Manifest) -> Result<Created, StoreError> {
        let key = Key::Manifest(manifest.volume, manifest.number);
        let bytes = manifest.encode().map_err(|source| unfit(&key, source))?;
        self.create(&key, &[bytes.into()]).await
    }

    /// The manifest of a number.
    pub async fn manifest(&self, volume: VolumeId, number: u64) -> Result<Manifest, StoreError> {
        self.manifest_hashed(volume, number).await.map(|(manifest, _)| manifest)
    }

    /// The manifest of a number, and the BLAKE3 of its bytes.
    pub async fn manifest_hashed(
        &self,
        volume: VolumeId,
        number: u64,
    ) -> Result<(Manifest, [u8; 32]), StoreError> {
        let decode = |bytes: &[u8]| {
            let manifest = Manifest::decode(bytes)?;
            let here = (manifest.volume, manifest.number) == (volume, number);
            let hashed = || (manifest, *blake3::hash(bytes).as_bytes());
            if here { Ok(hashed()) } else { Err(FormatError::Elsewhere("volume or number")) }
        };
        self.checked(&Key::Manifest(volume, number), decode).await
    }

    /// Number of the newest manifest of a volume; `None` when there is none behind `after`. Of a volume with very many manifests
    /// most are skipped: by doubled steps, then by binary search. Every question is one about all numbers behind one, so gaps
    /// between numbers do not matter.
    pub async fn newest_manifest(
        &self,
        volume: VolumeId,
        after: Option<u64>,
    ) -> Result<Option<u64>, StoreError> {
        // The newest number found, and one with nothing behind it, as far as they are known.
        let (mut newest, mut end) = (None, None);
        let mut low = after.unwrap_or_default();
        let (mut behind, mut step) = (low, MANIFESTS_LISTED as u64);
        loop {
            let key = (after.is_some() || behind > 0).then_some(Key::Manifest(volume, behind));
            let listing = self.list_first(Folder::Manifests(volume), key.as_ref(), MANIFESTS_LISTED).await?;
            let found = listing.last().map(|object| &object.key);
            match found {
                Some(&Key::Manifest(_, number)) => {
                    (newest, low) = (Some(number), number);
                    if listing.len() < MANIFESTS_LISTED {
                        return Ok(newest);
                    }
                }
                _ if behind == low => return Ok(newest),
                _ => end = Some(behind),
            }
            behind = match end {
                None => low.saturating_add(step),
                Some(end) if end.saturating_sub(low) < MANIFESTS_LISTED as u64 => low,
                Some(end) => low.midpoint(end),
            };
            step = step.saturating_mul(2);
        }
    }

    /// The newest manifest of a volume; `None` when there is none behind `after`.
    pub async fn latest_manifest(
        &self,
        volume: VolumeId,
        after: Option<u64>,
    ) -> Result<Option<Manifest>, StoreError> {
        Ok(self.latest_manifest_hashed(volume, after).await?.map(|(manifest, _)| manifest))
    }

    /// As [`Self::latest_manifest`], with the BLAKE3 of the bytes.
    pub async fn latest_manifest_hashed(
        &self,
        volume: VolumeId,
        after: Option<u64>,
    ) -> Result<Option<(Manifest, [u8; 32])>, StoreError> {
        let mut seen = after;
        while let Some(number) = self.newest_manifest(volume, after).await? {
            match self.manifest_hashed(volume, number).await {
                Ok(manifest) => return Ok(Some(manifest)),
                // The manifest was the newest when the listing was made and is deleted now, so there is a newer one.
                Err(error) if error.is_missing() && seen < Some(number) => seen = Some(number),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Manifest `number`, or a newer one when `number` is missing: the newest manifest is removed only when there is a newer one.
    pub async fn manifest_or_newer(
        &self,
        volume: VolumeId,
        number: u64,
    ) -> Result<(Manifest, [u8; 32]), StoreError> {
        match self.manifest_hashed(volume, number).await {
            Err(error) if error.is_missing() => {
                self.latest_manifest_hashed(volume, Some(number)).await?.ok_or(error)
            }
            found => found,
        }
    }

    /// Creates the pack. The pack id is random, so no such pack exists.
    pub async fn create_pack(&self, pack: &EncodedPack) -> Result<Created, StoreError> {
        let PackRef { volume, pack: id, .. } = pack.pack;
        self.create(&Key::Pack(volume, id), &pack.parts).await
    }

    /// The index of a pack: one request. A long index is decoded on a thread that may block.
    pub async fn pack_index(&self, pack: &PackRef) -> Result<PackIndex, StoreError> {
        let (key, pack) = (Key::Pack(pack.volume, pack.pack), *pack);
        let look = || async {
            let bytes = self.get_range(&key, pack.index()).await?;
            if pack.entries < LONG_INDEX_ENTRIES {
                return Ok(PackIndex::decode(&bytes, &pack));
            }
            let decoded = tokio::task::spawn_blocking(move || PackIndex::decode(&bytes, &pack)).await;
            decoded.map_err(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => StoreError::ShuttingDown { operation: Operation::Get, key: key.to_string() },
            })
        };
        self.until_intact(&key, look).await
    }

    /// The data of `entries`, which ascend in the index of `pack`, in one request for all blocks and the bytes between them.
    /// Entries of zeroes have no data.
    pub async fn blocks(&self, pack: &PackRef, entries: &[IndexEntry]) -> Result<Vec<Bytes>, StoreError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(Vec::new()) };
        let range = first.block().start..last.block().end;
        let wanted_bytes = entries.iter().map(|entry| u64::from(entry.stored_bytes)).sum::<u64>();
        let has_gaps = wanted_bytes < range.end.saturating_sub(range.start);
        let decode = |bytes: &Bytes| {
            let block = |entry: &IndexEntry| {
                if entry.codec == Codec::Zero {
                    return Ok(Bytes::new());
                }
                let at =
                    |offset: u64| offset.checked_sub(range.start).and_then(|at| usize::try_from(at).ok());
                let (start, end) = (at(entry.block().start), at(entry.block().end));
                match (start, end) {
                    (Some(start), Some(end)) if start <= end && end <= bytes.len() => {
                        let block = decode_block(entry, &bytes.slice(start..end))?;
                        // An uncompressed block is a slice of the answer, and would keep the unwanted bytes of the answer in
                        // memory.
                        let is_part = has_gaps && entry.codec == Codec::Stored;
                        Ok(if is_part { Bytes::copy_from_slice(&block) } else { block })
                    }
                    _ => Err(FormatError::Malformed("order of the entries that were asked for")),
                }
            };
            entries.iter().map(block).collect()
        };
        let key = Key::Pack(pack.volume, pack.pack);
        let look = || async { Ok(decode(&self.get_range(&key, range.clone()).await?)) };
        self.until_intact(&key, look).await
    }

    /// Gives a volume a name. [`Created::Existed`]: the name is taken.
    pub async fn create_name(&self, name: &StoreName, record: &NameRecord) -> Result<Created, StoreError> {
        self.mark(&Key::Name(name.clone()), *record).await
    }

    /// The record of a name; `None` when the name is free.
    pub async fn name(&self, name: &StoreName) -> Result<Option<NameRecord>, StoreError> {
        or_none(self.checked(&Key::Name(name.clone()), NameRecord::decode).await)
    }

    /// Keeps the state of a volume under a key of its own. [`Created::Existed`]: the key is taken.
    pub async fn create_snapshot(&self, snapshot: &Snapshot) -> Result<Created, StoreError> {
        let key = Key::Snapshot(snapshot.manifest.volume, snapshot.name.clone());
        let bytes = snapshot.encode().map_err(|source| unfit(&key, source))?;
        self.create(&key, &[bytes.into()]).await
    }

    /// The snapshot of a key.
    pub async fn snapshot(&self, volume: VolumeId, name: &StoreName) -> Result<Snapshot, StoreError> {
        let decode = |bytes: &[u8]| {
            let snapshot = Snapshot::decode(bytes)?;
            let here = (snapshot.manifest.volume, &snapshot.name) == (volume, name);
            if here { Ok(snapshot) } else { Err(FormatError::Elsewhere("volume or name")) }
        };
        self.checked(&Key::Snapshot(volume, name.clone()), decode).await
    }

    /// Creates an object whose key says it all.
    pub(super) async fn mark(&self, key: &Key, record: NameRecord) -> Result<Created, StoreError> {
        self.create(key, &[record.encode().into()]).await
    }

    /// Whether a volume is gone for good: there is nothing of it any more, or nothing that counts.
    pub(super) async fn is_buried(&self, volume: VolumeId) -> Result<bool, StoreError> {
        let decode = |bytes: &[u8]| {
            let here = NameRecord::decode(bytes)?.volume == volume;
            if here { Ok(()) } else { Err(FormatError::Elsewhere("volume")) }
        };
        Ok(or_none(self.checked(&Key::Grave(volume), decode).await)?.is_some())
    }

    /// The candidates that a run of garbage collection wrote down.
    pub(super) async fn candidates(&self, key: &Key) -> Result<Candidates, StoreError> {
        self.checked(key, Candidates::decode).await
    }

    async fn checked<T>(
        &self,
        key: &Key,
        decode: impl Fn(&[u8]) -> Result<T, FormatError>,
    ) -> Result<T, StoreError> {
        self.until_intact(key, || async { Ok(decode(&self.get(key, OBJECT_BYTES_MAX).await?)) }).await
    }

    /// The object that `look` reads and decodes.
    async fn until_intact<T, F>(&self, key: &Key, look: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<Result<T, FormatError>, StoreError>>,
    {
        let mut reads = 0;
        loop {
            reads += 1;
            let error = match look().await {
                Ok(Ok(object)) => return Ok(object),
                Ok(Err(source)) if source.is_other_version() => {
                    return Err(StoreError::OtherVersion { key: key.to_string(), source });
                }
                Ok(Err(source)) => StoreError::Damaged { key: key.to_string(), source },
                Err(error @ StoreError::Damaged { .. }) => error,
                Err(error) => return Err(error),
            };
            self.stats().damaged.add(1);
            if reads == READS_MAX {
                return Err(error);
            }
        }
    }
}

fn new_marker(store: &Store) -> Marker {
    // Sixteen random bytes, as any identity has.
    let store_id = uuid::Builder::from_random_bytes(VolumeId::random(store.entropy()).0).into_uuid();
    let moment = i64::try_from(SystemClock.unix_millis()).ok().and_then(DateTime::from_timestamp_millis);
    let created = moment.unwrap_or_default().to_rfc3339_opts(SecondsFormat::Secs, true);
    Marker { store_id, created }
}

fn or_none<T>(result: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
