//! A small cut: the one pack of the cut is uploaded while the cut settles and then the manifest is noted.
//!
//! Owns the order of these steps. Does not own cuts of several packs (`commit`), nor creating the manifest (`writer/publish`).
//! Invariant: a manifest is noted only when the cut is settled, since a copy of this host's disk with the note must have the data too;
//! if the pack does not arrive, the store is never asked to create the manifest, and the note is taken back.
//!
//! ```text
//!              ┌─▶ pack in the store ────────────────┐
//!  pack made ──┴─▶ cut is settled ─▶ manifest noted ─┴─▶ manifest in the store
//! ```

use std::sync::Arc;

use super::content::CutContent;
use super::packing::{CutPack, Packing};
use super::upload::{Span, Upload};
use crate::store::format::Manifest;
use crate::store::volume::damage;
use crate::store::volume::error::VolumeError;
use crate::store::volume::error::blocking;
use crate::store::volume::host::EncodedManifest;
use crate::store::volume::writer::VolumeWriter;
use crate::store::volume::writer::new_packs::NewPacks;

/// Most data of a cut of one pack, bytes, and most extents.
const DATA_BYTES_MAX: u64 = 1 << 20;
const EXTENTS_MAX: usize = 256;

impl VolumeWriter {
    /// Uploads `content` if one pack has everything. Returns the manifest that is noted for the pack: the cut is settled then. `None`
    /// when the content is too much, or some of the content is lost, or an earlier try has uploaded some: then the caller uploads
    /// whatever is not in `upload`, and settles the cut.
    pub(super) async fn upload_one_pack(
        &self,
        base: &Manifest,
        content: &CutContent,
        upload: &Upload,
        edit: impl Fn(&Manifest, &NewPacks) -> Option<Manifest>,
    ) -> Result<Option<EncodedManifest>, VolumeError> {
        let (data_bytes, cut) = (content.data_bytes(), Arc::clone(&content.cut));
        if data_bytes > DATA_BYTES_MAX || cut.extents().len() > EXTENTS_MAX {
            return Ok(None);
        }
        let clock = &self.host.options.clock;
        if !upload.begin(content.hash(), data_bytes, clock.since_boot(), base).is_empty() {
            return Ok(None);
        }
        let permit = self.host.pack_memory(data_bytes).await?;
        let begun = clock.since_boot();
        let packing = Packing::new(content.clone(), &[]);
        let options = self.pack_options(0, content.first_seq(), cut.seq());
        let (made, mut packing) = blocking(move || packing.next_pack(options)).await?;
        let Some(CutPack { pack, sectors, data_bytes }) = made else { return Ok(None) };
        let is_whole = packing.is_done() && cut.damaged().is_empty();
        let draft = if is_whole {
            let uploads = NewPacks::since(begun, base.number, [pack.trailer.pack]);
            self.draft(base, |base| edit(base, &uploads))?
        } else {
            None
        };
        let local = async {
            cut.settled().await.map_err(VolumeError::unsettled)?;
            match &draft {
                Some(draft) => self.host.note_manifest(draft).await,
                None => Ok(()),
            }
        };
        let (created, noted) = futures_util::join!(self.create_pack(pack), local);
        drop(permit);
        if let (Some(draft), true) = (&draft, created.is_err() && noted.is_ok()) {
            self.host.withdraw_note(draft);
        }
        let pack = created?;
        let lost = damage::parts_in(&cut.damaged(), sectors.clone());
        let (from, to, after) = (sectors.start, sectors.end, base.number);
        upload.add(Span { from, to, lost, data_bytes, pack, begun, after });
        noted?;
        Ok(draft)
    }
}
