//! How changes of the catalog are carried out in its tables.
//!
//! Owns the effect of a change on the tables. Does not own when changes are made (`writer`).

use redb::{Database, ReadableTable, Table, WriteTransaction};

use super::change::Change;
use super::encoding::DecodeError;
use super::loss::encode_loss;
use super::record::ExportRecord;
use super::tables::{
    COMMITS_KEY, EXPORTS, INTENTS, LOST, META, NEXT_EXPORT_ID_KEY, START_BEGUN_KEY, START_KEY, STORE,
    STORE_ID_KEY, STORED, key_of,
};
use super::volume_record::VolumeRecord;
use crate::cache::Start;
use crate::store::volume::{Past, Resume};
use crate::units::ExportId;

/// Makes all changes, or none, in transaction `number`.
///
/// `forgotten` has a place for each change, and receives the journal removed together with an export. A batch that is in the
/// file already may be made again with the `forgotten` of the first time: the file is the same after both.
pub(super) fn commit<'a>(
    database: &Database,
    batch: impl IntoIterator<Item = &'a Change>,
    number: u64,
    forgotten: &mut [Option<Past>],
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let mut tables = Tables::open(&transaction)?;
    for (change, forgotten) in batch.into_iter().zip(forgotten) {
        let removed = tables.apply(change)?;
        if forgotten.is_none()
            && let Some(past) = removed
        {
            *forgotten = Some(tables.whole_journal(past)?);
        }
        // In a batch that is made again the export is gone already, and an earlier change of the batch has put the journal back.
        if let Some(past) = *forgotten {
            forget_journal(&transaction, past)?;
        }
    }
    tables.close(number)?;
    transaction.commit()?;
    Ok(())
}

/// The tables of exports in one transaction.
struct Tables<'a> {
    transaction: &'a WriteTransaction,
    exports: Table<'a, u32, &'static [u8]>,
    stored: Table<'a, u32, &'static [u8]>,
    meta: Table<'a, &'static str, u64>,
    next_export_id: u64,
}

impl<'a> Tables<'a> {
    fn open(transaction: &'a WriteTransaction) -> Result<Self, redb::Error> {
        let exports = transaction.open_table(EXPORTS)?;
        let stored = transaction.open_table(STORED)?;
        let meta = transaction.open_table(META)?;
        let next_export_id = meta.get(NEXT_EXPORT_ID_KEY)?.map_or(1, |value| value.value());
        Ok(Self { transaction, exports, stored, meta, next_export_id })
    }

    /// Writes the next export id and the transaction's number.
    fn close(mut self, number: u64) -> Result<(), redb::Error> {
        self.meta.insert(NEXT_EXPORT_ID_KEY, self.next_export_id)?;
        self.meta.insert(COMMITS_KEY, number)?;
        Ok(())
    }

    /// Makes `change`. Returns the last state of the volume of an export that was removed.
    fn apply(&mut self, change: &Change) -> Result<Option<Past>, redb::Error> {
        match change {
            Change::Put(record) => self.put_export(record)?,
            Change::Create(record, volume) => {
                self.put_export(record)?;
                if let Some(resume) = volume {
                    self.put_volume(record.export_id(), |_| Some(VolumeRecord::of(resume)))?;
                }
            }
            Change::Replace(old, record, resume) => {
                let removed = self.remove(*old)?.filter(|past| past.volume != resume.volume);
                self.put_export(record)?;
                self.put_volume(record.export_id(), |_| Some(VolumeRecord::of(resume)))?;
                return Ok(removed);
            }
            Change::Remove(id) => return self.remove(*id),
            Change::Link(id, resume) => self.put_volume(*id, |_| Some(VolumeRecord::of(resume)))?,
            Change::WrittenBack(id, resume, evicted) => {
                self.put_volume(*id, |known| Some(known?.advanced(resume).evicted(*evicted)))?;
            }
            Change::Evicted(marks) => {
                for (id, seq) in marks {
                    self.put_volume(*id, |known| Some(known?.evicted(*seq)))?;
                }
            }
            Change::Start(Start { last, begun }) => {
                self.meta.insert(START_KEY, u64::from(*last))?;
                match begun {
                    Some(begun) => drop(self.meta.insert(START_BEGUN_KEY, u64::from(*begun))?),
                    None => drop(self.meta.remove(START_BEGUN_KEY)?),
                }
            }
            Change::Store(id) => {
                self.transaction.open_table(STORE)?.insert(STORE_ID_KEY, id.as_u128())?;
            }
            Change::Forget(past) => forget_journal(self.transaction, *past)?,
            Change::Intend(volume, number, hash) => {
                let mut intents = self.transaction.open_table(INTENTS)?;
                let volume = key_of(*volume);
                let old = (volume, 0, &[0; 32])..(volume, number.saturating_sub(1), &[0; 32]);
                intents.retain_in(old, |_, ()| false)?;
                intents.insert((volume, *number, hash), ())?;
            }
            Change::Withdraw(volume, number, hash) => {
                self.transaction.open_table(INTENTS)?.remove((key_of(*volume), *number, hash))?;
            }
            Change::Lost(volume, epoch, loss) => {
                let bytes = encode_loss(loss).map_err(other)?;
                let key = (key_of(*volume), *epoch);
                self.transaction.open_table(LOST)?.insert(key, bytes.as_slice())?;
            }
        }
        Ok(None)
    }

    /// Replaces the record of an export.
    fn put_export(&mut self, record: &ExportRecord) -> Result<(), redb::Error> {
        let bytes = record.encode().map_err(other)?;
        self.exports.insert(record.id, bytes.as_slice())?;
        self.next_export_id = u64::from(record.id).saturating_add(1).max(self.next_export_id);
        Ok(())
    }

    /// Replaces the record of an export's volume by `change` of the present record; `None` changes nothing.
    fn put_volume(
        &mut self,
        id: ExportId,
        change: impl FnOnce(Option<VolumeRecord>) -> Option<VolumeRecord>,
    ) -> Result<(), redb::Error> {
        let known = self.stored.get(id.0)?.map(|bytes| VolumeRecord::decode(bytes.value()));
        let known = known.transpose().map_err(other)?;
        if let Some(record) = change(known) {
            let bytes = record.encode().map_err(other)?;
            self.stored.insert(id.0, bytes.as_slice())?;
        }
        Ok(())
    }

    /// Removes both records of an export. Returns the last state of the export's volume.
    fn remove(&mut self, id: ExportId) -> Result<Option<Past>, redb::Error> {
        self.exports.remove(id.0)?;
        Ok(past_of(self.stored.remove(id.0)?.map(|bytes| VolumeRecord::decode(bytes.value()))))
    }

    /// `past` of an export that was removed, or the whole journal of the volume if no other export has the volume. All other
    /// exports are looked at only where the journal goes on after `past`, which is rare: after a loss, or after a last manifest
    /// that failed.
    fn whole_journal(&self, past: Past) -> Result<Past, redb::Error> {
        let volume = key_of(past.volume);
        let later = (volume, past.number.saturating_add(1), &[0; 32])..=(volume, u64::MAX, &[u8::MAX; 32]);
        let lost_later = (volume, past.epoch.saturating_add(1))..=(volume, u64::MAX);
        if self.transaction.open_table(INTENTS)?.range(later)?.next().is_none()
            && self.transaction.open_table(LOST)?.range(lost_later)?.next().is_none()
        {
            return Ok(past);
        }
        for item in self.stored.iter()? {
            let other = past_of(Some(VolumeRecord::decode(item?.1.value())));
            if other.is_some_and(|other| other.volume == past.volume) {
                return Ok(past);
            }
        }
        Ok(Past { number: u64::MAX, epoch: u64::MAX, ..past })
    }
}

/// Removes the journal of `past`.
fn forget_journal(transaction: &WriteTransaction, past: Past) -> Result<(), redb::Error> {
    let volume = key_of(past.volume);
    let manifests = (volume, 0, &[0; 32])..=(volume, past.number, &[u8::MAX; 32]);
    transaction.open_table(INTENTS)?.retain_in(manifests, |_, ()| false)?;
    transaction.open_table(LOST)?.retain_in((volume, 0)..=(volume, past.epoch), |_, _| false)?;
    Ok(())
}

/// The last state of a volume; `None` for a damaged record.
fn past_of(record: Option<Result<VolumeRecord, DecodeError>>) -> Option<Past> {
    let Resume { volume, number, epoch, .. } = record?.ok()?.resume().ok()?;
    Some(Past { volume, number, epoch })
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> redb::Error {
    redb::Error::Io(std::io::Error::other(error))
}
