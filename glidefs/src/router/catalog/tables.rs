//! The catalog's tables, and how they are read and changed.
//!
//! Owns what is in `catalog.redb`. Does not own what a value means, nor who changes it when.
//!
//! Tables: `exports` maps an export id to a record, `stored` to what is known of its counterpart in the store, `store` maps `id`
//! to the store's identity, `meta` maps `schema_version` and `next_export_id` to a number.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use uuid::Uuid;

use super::{Change, Waiting};
use crate::router::record::Record;
use crate::router::stored::Stored;
use crate::units::ExportId;

pub(super) const EXPORTS: TableDefinition<u32, &[u8]> = TableDefinition::new("exports");
const STORED: TableDefinition<u32, &[u8]> = TableDefinition::new("stored");
const STORE: TableDefinition<&str, u128> = TableDefinition::new("store");
const STORE_ID_KEY: &str = "id";
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
pub(super) const SCHEMA_VERSION_KEY: &str = "schema_version";
const NEXT_EXPORT_ID_KEY: &str = "next_export_id";
/// Layout of the tables that this code reads and writes.
pub(super) const SCHEMA_VERSION: u64 = 1;

/// Makes the tables of a new catalog and gives the schema version of an existing one.
pub(super) fn initialise(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
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
        transaction.commit()?;
    } else {
        transaction.abort()?;
    }
    Ok(version)
}

/// An entry as it is on disk.
pub(super) struct RawEntry {
    pub id: u32,
    pub record: Vec<u8>,
    pub counterpart: Option<Vec<u8>>,
}

/// What a catalog holds.
pub(super) struct Contents {
    pub entries: Vec<RawEntry>,
    /// The next export id.
    pub next: u64,
    pub store_id: Option<Uuid>,
}

pub(super) fn read(database: &Database) -> Result<Contents, redb::Error> {
    let transaction = database.begin_read()?;
    let next = transaction.open_table(META)?.get(NEXT_EXPORT_ID_KEY)?.map_or(0, |value| value.value());
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
    Ok(Contents { entries, next, store_id })
}

/// Makes all changes, or none.
pub(super) fn commit(database: &Database, batch: &[Box<Waiting>]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut exports = transaction.open_table(EXPORTS)?;
        let mut stored = transaction.open_table(STORED)?;
        let mut meta = transaction.open_table(META)?;
        let mut next = meta.get(NEXT_EXPORT_ID_KEY)?.map_or(1, |value| value.value());
        for waiting in batch {
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
                    stored.remove(old.0)?;
                    put_record(&mut exports, &mut next, record)?;
                    put_stored(&mut stored, record.export_id(), |_| Some(Stored::of(resume)))?;
                }
                Change::Tie(id, resume) => put_stored(&mut stored, *id, |_| Some(Stored::of(resume)))?,
                Change::Flushed(id, resume) => {
                    put_stored(&mut stored, *id, |known| Some(known?.advanced(resume)))?;
                }
                Change::Evicted(marks) => {
                    for (id, seq) in marks {
                        put_stored(&mut stored, *id, |known| Some(known?.evicted(*seq)))?;
                    }
                }
                Change::Remove(id) => {
                    exports.remove(id.0)?;
                    stored.remove(id.0)?;
                }
                Change::Store(id) => {
                    transaction.open_table(STORE)?.insert(STORE_ID_KEY, id.as_u128())?;
                }
            }
        }
        meta.insert(NEXT_EXPORT_ID_KEY, next)?;
    }
    transaction.commit()?;
    Ok(())
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
    let other = |error| redb::Error::Io(std::io::Error::other(error));
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
