//! Uploading one pack of a volume.
//!
//! Owns the identity of a new pack. Does not own the data in a pack, nor memory for packs.

use super::VolumeWriter;
use crate::store::client::Created;
use crate::store::format::{EncodedPack, PackOptions, PackRef};
use crate::store::ids::{PackId, VolumeId};
use crate::store::volume::error::VolumeError;
use crate::units::Seq;

impl VolumeWriter {
    pub(in crate::store::volume) fn pack_options(
        &self,
        level: u8,
        first_seq: Seq,
        last_seq: Seq,
    ) -> PackOptions {
        let (host, volume): (_, VolumeId) = (&self.host, self.id());
        let pack = PackId::random(host.store.entropy());
        PackOptions { volume, pack, level, first_seq, last_seq, zstd_level: host.options.zstd_level }
    }

    pub(in crate::store::volume) async fn create_pack(
        &self,
        pack: EncodedPack,
    ) -> Result<PackRef, VolumeError> {
        let host = &self.host;
        let created = pack.trailer.pack;
        match host.store.create_pack(&pack).await? {
            Created::Created => {}
            // The identity is random: another writer made the same random numbers, as a copy of this host could.
            Created::Existed => return Err(VolumeError::Contended { volume: self.id() }),
        }
        // Packs of level 0 are merged soon. Results of merges are read much later, and take no memory.
        if let Some(recent) = host.reader.recent.as_ref().filter(|_| created.level == 0)
            && let Some(index) = recent.put(pack, || host.recent_bytes_max())
        {
            host.reader.metadata.put_index(created.pack, index);
        }
        Ok(created)
    }
}
