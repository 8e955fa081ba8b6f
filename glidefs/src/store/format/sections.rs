//! Optional sections of a manifest: the holder of the volume, damaged sectors, the deletion of the volume, packs on their way into a
//! later manifest, and the volume's properties.
//!
//! Owns the encoding of the sections at the end of a manifest's body, but for the bytes of properties (`properties`). Does not own
//! when a volume is held or released, the treatment of damaged sectors, when a deletion is final, nor when packs are listed before
//! their content counts. Invariant: sections have one encoding. A section of an unknown kind was written by a newer glidefs, and is
//! never taken for damage.
//!
//! ```text
//! section:  tag u16 │ length u32 │ bytes            tags ascend, each at most once
//! holder:   released u8 (0 or 1) │ length u8 │ host name
//! deleted:  u8 (0 = can be undone, 1 = for good)
//! damaged:  count × (first sector u64, sectors u64)   ascending, with a gap between two
//! uploaded: count × pack id
//! properties: as in `properties`                   left out where every property is usual
//! ```
//!
//! Tag 2 is not used: an earlier glidefs knew damaged sectors by this tag, and served damaged sectors as if they were whole.

use super::cursor::Cursor;
use super::error::FormatError;
use super::limits::PACKS_MAX;
use super::properties;
use crate::properties::Properties;
use crate::store::ids::{HostName, PackId};
use crate::units::SectorRange;

/// Most ranges of damaged sectors in a manifest.
pub const DAMAGED_RANGES_MAX: usize = 1 << 18;
/// Most bytes of all sections of a manifest.
pub(super) const SECTIONS_BYTES_MAX: usize = 9 << 20;

const HOLDER_TAG: u16 = 1;
const DELETED_TAG: u16 = 3;
const DAMAGED_TAG: u16 = 4;
const UPLOADED_TAG: u16 = 5;
const PROPERTIES_TAG: u16 = 6;
const RANGE_BYTES: usize = 16;
const ID_BYTES: usize = 16;

/// The present or last host that writes a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The host name of the kernel.
    pub host: HostName,
    /// Whether the host has given the volume up: another host may open a released volume without a take-over.
    pub released: bool,
}

/// The end of a volume. A deletion takes the next number like any manifest, so a host that opens the volume at the same time
/// either comes before the deletion or finds the deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A next manifest without the deletion undoes the deletion.
    CanBeUndone,
    /// Garbage collection deletes the rest; no manifest follows.
    ForGood,
}

/// The optional parts of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    /// The host that writes the volume. `None`: the glidefs that wrote the manifest did not say.
    pub holder: Option<Holder>,
    /// Sectors with lost content: ascending, not empty, with a gap between two, and inside the volume. At most
    /// [`DAMAGED_RANGES_MAX`]. A read of such a sector is an error, whatever the packs hold for the sector.
    pub damaged: Vec<SectorRange>,
    /// Whether the volume is deleted.
    pub deleted: Option<Deletion>,
    /// Packs of a cut that is being uploaded, or of a snapshot to go back to. Garbage collection takes these packs for used as
    /// long as the manifest is the newest one. The packs are no content of the volume. At most [`PACKS_MAX`].
    pub uploaded: Vec<PackId>,
    /// The promises of the volume. All usual ones where the manifest has none: a glidefs that knew no properties wrote none either.
    pub properties: Properties,
}

impl Sections {
    /// Whether a manifest with these sections is one without any.
    pub fn is_empty(&self) -> bool {
        let Self { holder, damaged, deleted, uploaded, properties } = self;
        holder.is_none()
            && damaged.is_empty()
            && deleted.is_none()
            && uploaded.is_empty()
            && *properties == Properties::default()
    }

    /// Whether [`Self::decode`] accepts the output of [`Self::encode`] for a volume of `size_sectors`.
    pub(super) fn check(&self, size_sectors: u64) -> Result<(), FormatError> {
        const WRONG: FormatError = FormatError::Malformed("damaged sectors of a manifest");
        if self.uploaded.len() > PACKS_MAX {
            return Err(FormatError::Malformed("number of uploaded packs of a manifest"));
        }
        if !self.properties.are_allowed() {
            return Err(FormatError::Malformed("properties of a volume"));
        }
        if self.damaged.len() > DAMAGED_RANGES_MAX || self.damaged.iter().any(|range| range.is_empty()) {
            return Err(WRONG);
        }
        let apart = self.damaged.windows(2).all(|pair| pair[0].end() < pair[1].start());
        let inside = self.damaged.last().is_none_or(|last| last.end() <= size_sectors);
        if apart && inside { Ok(()) } else { Err(WRONG) }
    }

    pub(super) fn encode(&self, body: &mut Vec<u8>) {
        if let Some(holder) = &self.holder {
            let name = holder.host.as_str().as_bytes();
            // A host name has at most 255 bytes.
            let head = [u8::from(holder.released), name.len() as u8];
            put(body, HOLDER_TAG, &[&head[..], name].concat());
        }
        if let Some(deleted) = self.deleted {
            put(body, DELETED_TAG, &[u8::from(deleted == Deletion::ForGood)]);
        }
        if !self.damaged.is_empty() {
            let numbers = self.damaged.iter().flat_map(|range| [range.start(), range.count()]);
            put(body, DAMAGED_TAG, &numbers.flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
        }
        if !self.uploaded.is_empty() {
            put(body, UPLOADED_TAG, &self.uploaded.iter().flat_map(|pack| pack.0).collect::<Vec<u8>>());
        }
        if self.properties != Properties::default() {
            put(body, PROPERTIES_TAG, &properties::encode(&self.properties));
        }
    }

    /// Decodes the rest of the body of a manifest, for a volume of `size_sectors`.
    pub(super) fn decode(cursor: &mut Cursor<'_>, size_sectors: u64) -> Result<Self, FormatError> {
        let mut sections = Self::default();
        let mut before = 0;
        while cursor.left() > 0 {
            let tag = cursor.u16()?;
            let length = cursor.u32()? as usize;
            let mut section = Cursor::new(cursor.bytes(length)?);
            if tag <= before {
                return Err(FormatError::Malformed("order of the sections of a manifest"));
            }
            before = tag;
            match tag {
                HOLDER_TAG => sections.holder = Some(holder(&mut section)?),
                DELETED_TAG => sections.deleted = Some(deletion(&mut section)?),
                DAMAGED_TAG => sections.damaged = damaged(&mut section)?,
                UPLOADED_TAG => sections.uploaded = uploaded(&mut section)?,
                PROPERTIES_TAG => sections.properties = properties::decode(&mut section)?,
                _ => return Err(FormatError::Section { tag }),
            }
            section.end()?;
        }
        sections.check(size_sectors).map(|()| sections)
    }
}

fn put(body: &mut Vec<u8>, tag: u16, bytes: &[u8]) {
    body.extend_from_slice(&tag.to_le_bytes());
    // SECTIONS_BYTES_MAX fits.
    body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    body.extend_from_slice(bytes);
}

fn holder(section: &mut Cursor<'_>) -> Result<Holder, FormatError> {
    const WRONG: FormatError = FormatError::Malformed("holder of a volume");
    let released = match section.u8()? {
        0 => false,
        1 => true,
        _ => return Err(WRONG),
    };
    let length = section.u8()?;
    let name = std::str::from_utf8(section.bytes(length.into())?).ok();
    let host = name.and_then(HostName::exactly).ok_or(WRONG)?;
    Ok(Holder { host, released })
}

fn deletion(section: &mut Cursor<'_>) -> Result<Deletion, FormatError> {
    match section.u8()? {
        0 => Ok(Deletion::CanBeUndone),
        1 => Ok(Deletion::ForGood),
        _ => Err(FormatError::Malformed("deletion of a volume")),
    }
}

fn damaged(section: &mut Cursor<'_>) -> Result<Vec<SectorRange>, FormatError> {
    const WRONG: FormatError = FormatError::Malformed("damaged sectors of a manifest");
    let count = section.left() / RANGE_BYTES;
    if !(1..=DAMAGED_RANGES_MAX).contains(&count) {
        return Err(WRONG);
    }
    (0..count).map(|_| SectorRange::new(section.u64()?, section.u64()?).ok_or(WRONG)).collect()
}

fn uploaded(section: &mut Cursor<'_>) -> Result<Vec<PackId>, FormatError> {
    let count = section.left() / ID_BYTES;
    if !(1..=PACKS_MAX).contains(&count) {
        return Err(FormatError::Malformed("number of uploaded packs of a manifest"));
    }
    (0..count).map(|_| Ok(PackId(section.array()?))).collect()
}
