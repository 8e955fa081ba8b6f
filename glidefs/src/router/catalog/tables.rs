//! The catalog's tables, and how they are read and changed.
//!
//! Owns what is in `catalog.redb`. Does not own what a value means, nor who changes it when.
//!
//! Tables: `exports` maps an export id to a record, `stored` to what is known of its counterpart in the store, `store` maps `id`
//! to the store's identity, `meta` maps `schema_version`, `next_export_id`, `start`, `start_begun` and `commits`, the number of the
//! last transaction, to a number. `intents` has the volume, number and hash of manifests that the store was asked to create,
//! `allowed` maps a volume to the number above which all manifests count as noted, `lost` maps a volume and an epoch to why this
//! host lost that.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use uuid::Uuid;

use super::{Change, Waiting};
use crate::cache::Start;
use crate::router::notes::encode_loss;
use crate::router::record::{DecodeError, Record};
use crate::router::stored::Stored;
use crate::store::VolumeId;
use crate::store::volume::{ManifestHash, Past, Resume};
use crate::units::ExportId;

pub(super) const EXPORTS: TableDefinition<u32, &[u8]> = TableDefinition::new("exports");
const STORED: TableDefinition<u32, &[u8]> = TableDefinition::new("stored");
const STORE: TableDefinition<&str, u128> = TableDefinition::new("store");
const STORE_ID_KEY: &str = "id";
pub(super) const INTENTS: TableDefinition<(u128, u64, &[u8; 32]), ()> = TableDefinition::new("intents");
/// Volumes of a catalog that a version wrote that took no notes, and the number of the newest manifest that it knew.
pub(super) const ALLOWED: TableDefinition<u128, u64> = TableDefinition::new("allowed");
const LOST: TableDefinition<(u128, u64), &[u8]> = TableDefinition::new("lost");
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
pub(super) const SCHEMA_VERSION_KEY: &str = "schema_version";
const NEXT_EXPORT_ID_KEY: &str = "next_export_id";
const COMMITS_KEY: &str = "commits";
const START_KEY: &str = "start";
const START_BEGUN_KEY: &str = "start_begun";
/// Layout of the tables that this code reads and writes.
pub(super) const SCHEMA_VERSION: u64 = 1;

/// Makes the tables of a new catalog, and those that an older one does not have. Gives the schema version.
pub(super) fn initialise(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let takes_notes = transaction.list_tables()?.any(|table| table.name() == INTENTS.name());
    let version = {
        let mut meta = transaction.open_table(META)?;
        let found = meta.get(SCHEMA_VERSION_KEY)?.map(|value| value.value());
        if let Some(version) = found {
            version
        } else {
            transaction.open_table(EXPORTS)?;
            transaction.open_table(STORED)?;
            meta.insert(SCHEMA_VERSION_KEY, SCHEMA_VERSION)?;
            meta.insert(NEXT_EXPORT_ID_KEY, 1)?;
            SCHEMA_VERSION
        }
    };
    if version == SCHEMA_VERSION {
        transaction.open_table(INTENTS)?;
        transaction.open_table(LOST)?;
        if takes_notes {
            transaction.open_table(ALLOWED)?;
        } else {
            allow_unknown(&transaction)?;
        }
        transaction.commit()?;
    } else {
        transaction.abort()?;
    }
    Ok(version)
}

/// Counts the manifests behind those that the catalog knows as noted: the version that wrote the catalog took no notes, and may
/// have created some that the catalog was not told of.
fn allow_unknown(transaction: &redb::WriteTransaction) -> Result<(), redb::Error> {
    let mut allowed = transaction.open_table(ALLOWED)?;
    for item in transaction.open_table(STORED)?.iter()? {
        let (_, bytes) = item?;
        // What cannot be decoded is told when the entries are read.
        if let Some(resume) = Stored::decode(bytes.value()).ok().and_then(|stored| stored.resume().ok()) {
            allowed.insert(key_of(resume.volume), resume.number)?;
        }
    }
    Ok(())
}

/// An entry as it is on disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawEntry {
    pub id: u32,
    pub record: Vec<u8>,
    pub counterpart: Option<Vec<u8>>,
}

/// What a catalog holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub entries: Vec<RawEntry>,
    /// The next export id.
    pub next: u64,
    /// The last start.
    pub start: Start,
    pub store_id: Option<Uuid>,
    /// Volume, number and hash of manifests, ascending.
    pub intents: Vec<(VolumeId, u64, ManifestHash)>,
    /// Volumes of which all manifests above a number count as noted.
    pub allowed: Vec<(VolumeId, u64)>,
    /// Volume and epoch, and why that was lost.
    pub losses: Vec<(VolumeId, u64, Vec<u8>)>,
}

pub(super) fn read(database: &Database) -> Result<Contents, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    let next = meta.get(NEXT_EXPORT_ID_KEY)?.map_or(0, |value| value.value());
    let number = |key| {
        let value = meta.get(key)?.map(|value| value.value());
        Ok::<_, redb::Error>(value.map(|value| u32::try_from(value).unwrap_or(u32::MAX)))
    };
    let start = Start { last: number(START_KEY)?.unwrap_or(0), begun: number(START_BEGUN_KEY)? };
    let stored = match transaction.open_table(STORED) {
        // Catalogs from before there were stores do not have it, nor the next one.
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        table => Some(table?),
    };
    let store_id = match transaction.open_table(STORE) {
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        table => table?.get(STORE_ID_KEY)?.map(|id| Uuid::from_u128(id.value())),
    };
    let mut entries = Vec::new();
    for item in transaction.open_table(EXPORTS)?.iter()? {
        let (id, bytes) = item?;
        let counterpart = match &stored {
            Some(stored) => stored.get(id.value())?.map(|bytes| bytes.value().to_vec()),
            None => None,
        };
        entries.push(RawEntry { id: id.value(), record: bytes.value().to_vec(), counterpart });
    }
    let mut intents = Vec::new();
    for item in transaction.open_table(INTENTS)?.iter()? {
        let (key, _) = item?;
        let (volume, number, hash) = key.value();
        intents.push((volume_id(volume), number, *hash));
    }
    let mut allowed = Vec::new();
    for item in transaction.open_table(ALLOWED)?.iter()? {
        let (volume, number) = item?;
        allowed.push((volume_id(volume.value()), number.value()));
    }
    let mut losses = Vec::new();
    for item in transaction.open_table(LOST)?.iter()? {
        let (key, bytes) = item?;
        let (volume, epoch) = key.value();
        losses.push((volume_id(volume), epoch, bytes.value().to_vec()));
    }
    Ok(Contents { entries, next, start, store_id, intents, allowed, losses })
}

/// Number of the last transaction; 0 where none left one.
pub(super) fn commits(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_read()?;
    Ok(transaction.open_table(META)?.get(COMMITS_KEY)?.map_or(0, |value| value.value()))
}

/// Makes all changes, or none, in transaction `number`. `forgotten` has for each change what notes are removed with an entry on,
/// if so. A batch that is in the file already may be made again with the `forgotten` of the first time: the file is the same
/// after both.
pub(super) fn commit(
    database: &Database,
    batch: &[Box<Waiting>],
    number: u64,
    forgotten: &mut [Option<Past>],
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut exports = transaction.open_table(EXPORTS)?;
        let mut stored = transaction.open_table(STORED)?;
        let mut meta = transaction.open_table(META)?;
        let mut next = meta.get(NEXT_EXPORT_ID_KEY)?.map_or(1, |value| value.value());
        for (waiting, forgotten) in batch.iter().zip(forgotten) {
            let mut removed = None;
            match &waiting.change {
                Change::Put(record) => put_record(&mut exports, &mut next, record)?,
                Change::Create(record, counterpart) => {
                    put_record(&mut exports, &mut next, record)?;
                    if let Some(resume) = counterpart {
                        put_stored(&mut stored, record.export_id(), |_| Some(Stored::of(resume)))?;
                    }
                }
                Change::Replace(old, record, resume) => {
                    exports.remove(old.0)?;
                    let past = past_of(stored.remove(old.0)?.map(|bytes| Stored::decode(bytes.value())));
                    removed = past.filter(|past| past.volume != resume.volume);
                    put_record(&mut exports, &mut next, record)?;
                    put_stored(&mut stored, record.export_id(), |_| Some(Stored::of(resume)))?;
                }
                Change::Tie(id, resume) => put_stored(&mut stored, *id, |_| Some(Stored::of(resume)))?,
                Change::Flushed(id, resume, evicted) => {
                    put_stored(&mut stored, *id, |known| Some(known?.advanced(resume).evicted(*evicted)))?;
                    transaction.open_table(ALLOWED)?.remove(key_of(resume.volume))?;
                }
                Change::EndAllowance(volume) => {
                    transaction.open_table(ALLOWED)?.remove(key_of(*volume))?;
                }
                Change::Forget(past) => forget_notes(&transaction, *past)?,
                Change::Evicted(marks) => {
                    for (id, seq) in marks {
                        put_stored(&mut stored, *id, |known| Some(known?.evicted(*seq)))?;
                    }
                }
                Change::Intend(volume, number, hash) => {
                    let mut intents = transaction.open_table(INTENTS)?;
                    let volume = key_of(*volume);
                    transaction.open_table(ALLOWED)?.remove(volume)?;
                    let old = (volume, 0, &[0; 32])..(volume, number.saturating_sub(1), &[0; 32]);
                    intents.retain_in(old, |_, ()| false)?;
                    intents.insert((volume, *number, hash), ())?;
                }
                Change::Withdraw(volume, number, hash) => {
                    transaction.open_table(INTENTS)?.remove((key_of(*volume), *number, hash))?;
                }
                Change::Lost(volume, epoch, loss) => {
                    let bytes = encode_loss(loss).map_err(|error| other(error.to_string()))?;
                    let key = (key_of(*volume), *epoch);
                    transaction.open_table(LOST)?.insert(key, bytes.as_slice())?;
                }
                Change::Remove(id) => {
                    exports.remove(id.0)?;
                    removed = past_of(stored.remove(id.0)?.map(|bytes| Stored::decode(bytes.value())));
                }
                Change::Start(Start { last, begun }) => {
                    meta.insert(START_KEY, u64::from(*last))?;
                    match begun {
                        Some(begun) => drop(meta.insert(START_BEGUN_KEY, u64::from(*begun))?),
                        None => drop(meta.remove(START_BEGUN_KEY)?),
                    }
                }
                Change::Store(id) => {
                    transaction.open_table(STORE)?.insert(STORE_ID_KEY, id.as_u128())?;
                }
            }
            if forgotten.is_none()
                && let Some(past) = removed
            {
                *forgotten = Some(with_all(past, &transaction, &stored)?);
            }
            // When the batch is made again, the entry is gone, and a note that the batch takes before that is back.
            if let Some(past) = *forgotten {
                forget_notes(&transaction, past)?;
            }
        }
        meta.insert(NEXT_EXPORT_ID_KEY, next)?;
        meta.insert(COMMITS_KEY, number)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Removes the notes on `past`.
fn forget_notes(transaction: &redb::WriteTransaction, past: Past) -> Result<(), redb::Error> {
    let volume = key_of(past.volume);
    transaction.open_table(ALLOWED)?.remove(volume)?;
    let manifests = (volume, 0, &[0; 32])..=(volume, past.number, &[u8::MAX; 32]);
    transaction.open_table(INTENTS)?.retain_in(manifests, |_, ()| false)?;
    transaction.open_table(LOST)?.retain_in((volume, 0)..=(volume, past.epoch), |_, _| false)?;
    Ok(())
}

/// `past` of an entry that was removed, or all of its volume if no other entry has it. To look at all others is necessary for few
/// entries only: those that leave later notes, which exports do that were lost, or whose last manifest failed.
fn with_all(
    past: Past,
    transaction: &redb::WriteTransaction,
    stored: &redb::Table<'_, u32, &[u8]>,
) -> Result<Past, redb::Error> {
    let volume = key_of(past.volume);
    let later = (volume, past.number.saturating_add(1), &[0; 32])..=(volume, u64::MAX, &[u8::MAX; 32]);
    let lost_later = (volume, past.epoch.saturating_add(1))..=(volume, u64::MAX);
    if transaction.open_table(INTENTS)?.range(later)?.next().is_none()
        && transaction.open_table(LOST)?.range(lost_later)?.next().is_none()
    {
        return Ok(past);
    }
    for item in stored.iter()? {
        let other = past_of(Some(Stored::decode(item?.1.value())));
        if other.is_some_and(|other| other.volume == past.volume) {
            return Ok(past);
        }
    }
    Ok(Past { number: u64::MAX, epoch: u64::MAX, ..past })
}

/// What is past with an entry that was removed. Nothing with one that is damaged.
fn past_of(counterpart: Option<Result<Stored, DecodeError>>) -> Option<Past> {
    let Resume { volume, number, epoch, .. } = counterpart?.ok()?.resume().ok()?;
    Some(Past { volume, number, epoch })
}

fn key_of(volume: VolumeId) -> u128 {
    u128::from_be_bytes(volume.0)
}

fn volume_id(value: u128) -> VolumeId {
    VolumeId(value.to_be_bytes())
}

fn other(error: String) -> redb::Error {
    redb::Error::Io(std::io::Error::other(error))
}

/// Replaces the entry of an export.
fn put_record(
    table: &mut redb::Table<'_, u32, &[u8]>,
    next: &mut u64,
    record: &Record,
) -> Result<(), redb::Error> {
    let bytes = record.encode().map_err(|error| redb::Error::Io(std::io::Error::other(error)))?;
    table.insert(record.id, bytes.as_slice())?;
    *next = u64::from(record.id).saturating_add(1).max(*next);
    Ok(())
}

/// Replaces what is known of an export's counterpart.
fn put_stored(
    table: &mut redb::Table<'_, u32, &[u8]>,
    id: ExportId,
    change: impl FnOnce(Option<Stored>) -> Option<Stored>,
) -> Result<(), redb::Error> {
    let known = match table.get(id.0)? {
        Some(bytes) => Some(Stored::decode(bytes.value()).map_err(|error| other(error.to_string()))?),
        None => None,
    };
    if let Some(stored) = change(known) {
        let bytes = stored.encode().map_err(|error| other(error.to_string()))?;
        table.insert(id.0, bytes.as_slice())?;
    }
    Ok(())
}
