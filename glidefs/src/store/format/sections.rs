//! What a manifest says besides its packs: who holds the volume, which of its sectors are damaged, whether it is deleted, and which
//! packs are on their way into a later manifest.
//!
//! Owns the encoding of the sections that end the body of a manifest. Does not own when a volume is held or released, what
//! becomes of damaged sectors, when a deletion is final, nor when packs are listed before their content is. Invariant: sections have one encoding; a section of an unknown kind was written by a
//! newer glidefs, and is never taken for damage.
//!
//! ```text
//! section:  tag u16 │ length u32 │ bytes            tags ascend, each at most once
//! holder:   released u8 (0 or 1) │ length u8 │ host name
//! deleted:  u8 (0 = can be undone, 1 = for good)
//! damaged:  count × (first sector u64, sectors u64)   ascending, with a gap between two
//! uploaded: count × pack id
//! ```
//!
//! Tag 2 is not used: a glidefs that took damaged sectors under that tag served them as if they were whole.

use super::cursor::Cursor;
use super::error::FormatError;
use super::limits::PACKS_MAX;
use crate::store::ids::{HostName, PackId};
use crate::units::SectorRange;

/// Most ranges of damaged sectors that a manifest lists.
pub const DAMAGED_RANGES_MAX: usize = 1 << 18;
/// Most bytes that the sections of a manifest take.
pub(super) const SECTIONS_BYTES_MAX: usize = 9 << 20;

const HOLDER_TAG: u16 = 1;
const DELETED_TAG: u16 = 3;
const DAMAGED_TAG: u16 = 4;
const UPLOADED_TAG: u16 = 5;
const RANGE_BYTES: usize = 16;
const ID_BYTES: usize = 16;

/// The host that writes a volume, or wrote it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name that the host has for its kernel.
    pub host: HostName,
    /// Whether the host has given the volume up: another one may open it without taking it over.
    pub released: bool,
}

/// The end of a volume. The manifest that says so is the next one like any other, so one that opens the volume at the same time
/// comes before it or finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A next manifest without the deletion undoes it.
    CanBeUndone,
    /// Garbage collection takes what is left; no manifest follows.
    ForGood,
}

/// The optional parts of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    /// Who writes the volume. `None`: the manifest was written by a glidefs that did not say.
    pub holder: Option<Holder>,
    /// Sectors whose content was lost: ascending, not empty, with a gap between two, and inside the volume. At most
    /// [`DAMAGED_RANGES_MAX`]. Whatever packs have of these sectors, a read of one is an error.
    pub damaged: Vec<SectorRange>,
    /// Whether the volume is deleted.
    pub deleted: Option<Deletion>,
    /// Packs of a cut that is being uploaded: in use for garbage collection as long as the manifest is the newest one, and no
    /// content. At most [`PACKS_MAX`].
    pub uploaded: Vec<PackId>,
}

impl Sections {
    /// Whether a manifest with these sections is one without any.
    pub fn is_empty(&self) -> bool {
        let Self { holder, damaged, deleted, uploaded } = self;
        holder.is_none() && damaged.is_empty() && deleted.is_none() && uploaded.is_empty()
    }

    /// Whether [`Self::decode`] takes what [`Self::encode`] makes, for a volume of `size_sectors`.
    pub(super) fn check(&self, size_sectors: u64) -> Result<(), FormatError> {
        const WRONG: FormatError = FormatError::Malformed("damaged sectors of a manifest");
        if self.uploaded.len() > PACKS_MAX {
            return Err(FormatError::Malformed("number of uploaded packs of a manifest"));
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
    }

    /// Reads all that is left, of a volume of `size_sectors`.
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
