//! The catalog's tables, and how they are read.
//!
//! Owns the layout of `catalog.redb`. Does not own how tables are changed (`commit`) nor the bytes of a value (`record`,
//! `volume_record`, `loss`).
//!
//! | Table | Key | Value |
//! |---|---|---|
//! | `exports` | export id | record of the export |
//! | `stored` | export id | record of the export's volume in the store |
//! | `store` | `id` | identity of the store |
//! | `meta` | `schema_version`, `next_export_id`, `start`, `start_begun`, `commits` | a number; `commits` is the number of the last transaction |
//! | `intents` | volume, number and hash of a manifest that the store was asked to create | nothing |
//! | `lost` | volume and epoch | why this host lost the epoch |
//!
//! `intents` and `lost` together are the journals of the volumes. Catalogs of other versions may have tables `requests` and `allowed`, which
//! are left alone.

use std::collections::HashSet;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use uuid::Uuid;

use crate::cache::Start;
use crate::store::VolumeId;
use crate::store::volume::ManifestHash;

pub(super) const EXPORTS: TableDefinition<u32, &[u8]> = TableDefinition::new("exports");
pub(super) const STORED: TableDefinition<u32, &[u8]> = TableDefinition::new("stored");
pub(super) const STORE: TableDefinition<&str, u128> = TableDefinition::new("store");
pub(super) const STORE_ID_KEY: &str = "id";
pub(super) const INTENTS: TableDefinition<(u128, u64, &[u8; 32]), ()> = TableDefinition::new("intents");
pub(super) const LOST: TableDefinition<(u128, u64), &[u8]> = TableDefinition::new("lost");
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
pub(super) const SCHEMA_VERSION_KEY: &str = "schema_version";
pub(super) const NEXT_EXPORT_ID_KEY: &str = "next_export_id";
pub(super) const COMMITS_KEY: &str = "commits";
pub(super) const START_KEY: &str = "start";
pub(super) const START_BEGUN_KEY: &str = "start_begun";
/// Layout of the tables that this code reads and writes.
pub(super) const SCHEMA_VERSION: u64 = 1;

/// Creates the tables of a new catalog, and the tables missing from an older one. Returns the schema version.
pub(super) fn initialise(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let tables: HashSet<String> = transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
    let later = [INTENTS.name(), LOST.name()];
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
    // A start writes nothing without need: a full disk may not take it.
    if version == SCHEMA_VERSION && !later.iter().all(|name| tables.contains(*name)) {
        transaction.open_table(INTENTS)?;
        transaction.open_table(LOST)?;
        transaction.commit()?;
    } else {
        transaction.abort()?;
    }
    Ok(version)
}

/// The contents of a catalog.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// Id, and the undecoded values of an export and of its volume, ascending.
    pub entries: Vec<(u32, Vec<u8>, Option<Vec<u8>>)>,
    pub next: u64,
    pub start: Start,
    pub store_id: Option<Uuid>,
    /// Volume, number and hash of manifests, ascending.
    pub intents: Vec<(VolumeId, u64, ManifestHash)>,
    /// Volume, epoch, and the encoded loss.
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
        // Catalogs from before there were stores have neither this table nor the next one.
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
        let volume = match &stored {
            Some(stored) => stored.get(id.value())?.map(|bytes| bytes.value().to_vec()),
            None => None,
        };
        entries.push((id.value(), bytes.value().to_vec(), volume));
    }
    let mut intents = Vec::new();
    for item in transaction.open_table(INTENTS)?.iter()? {
        let (key, _) = item?;
        let (volume, number, hash) = key.value();
        intents.push((volume_id(volume), number, *hash));
    }
    let mut losses = Vec::new();
    for item in transaction.open_table(LOST)?.iter()? {
        let (key, bytes) = item?;
        let (volume, epoch) = key.value();
        losses.push((volume_id(volume), epoch, bytes.value().to_vec()));
    }
    Ok(Contents { entries, next, start, store_id, intents, losses })
}

/// Number of the last transaction; 0 in a catalog of a version that did not number transactions, and in a new one.
pub(super) fn commits(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_read()?;
    Ok(transaction.open_table(META)?.get(COMMITS_KEY)?.map_or(0, |value| value.value()))
}

/// The key of a volume.
pub(super) fn key_of(volume: VolumeId) -> u128 {
    u128::from_be_bytes(volume.0)
}

fn volume_id(value: u128) -> VolumeId {
    VolumeId(value.to_be_bytes())
}
