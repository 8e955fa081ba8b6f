//! Manifests: the state of a volume at a cut, as a list of packs.
//!
//! Owns the encoding. Does not own cuts, nor the choice of the packs of a manifest. Invariant: a manifest that decodes was
//! written whole, and describes every pack without contradiction. Its numbers can be added without an overflow.

use super::cursor::Cursor;
use super::envelope::{begin_version, open_version, seal};
use super::error::FormatError;
use super::limits::{FORMAT_VERSION, NUMBER_MAX, PACKS_MAX, SIZE_SECTORS_MAX, UNIX_MILLIS_MAX};
use super::pack_ref::{PACK_REF_BYTES, PackRef};
use super::sections::{SECTIONS_BYTES_MAX, Sections};
use super::zstd;
use crate::store::ids::{NAME_CHARS_MAX, StoreName, VolumeId, WriterId};
use crate::units::Seq;

pub(super) const MAGIC: [u8; 8] = *b"GLIDEMAN";
/// Most bytes of a manifest before the packs: fields of a fixed length, and the name.
const FIXED_BYTES_MAX: usize = 128 + NAME_CHARS_MAX;
/// Most bytes of a body before compression.
const BODY_BYTES_MAX: usize = FIXED_BYTES_MAX + PACKS_MAX * PACK_REF_BYTES + SECTIONS_BYTES_MAX;
/// Version of a manifest with sections. A glidefs without sections refuses such a manifest as newer than itself.
pub(super) const SECTIONS_VERSION: u16 = 2;

// Manifest. The body of version 1 ends with the packs; version 2 has sections behind the packs.
//
//    0     8    10   12             16
//   ┌─────┬─────┬────┬──────────────┬──────────────┬────────┐
//   │magic│vers.│ .. │ plain length │ body, zstd   │ BLAKE3 │
//   └─────┴─────┴────┴──────────────┴──────────────┴────────┘

/// The volume and manifest from which a fork was made. For information only: the manifest lists the packs of the origin like all
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The forked volume.
    pub volume: VolumeId,
    /// Number of the forked manifest.
    pub manifest: u64,
}

/// The state of a volume at a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The volume of the state.
    pub volume: VolumeId,
    /// Number among the manifests of the volume: 1 for the first.
    pub number: u64,
    /// Grows whenever another writer takes the volume over.
    pub epoch: u64,
    /// The daemon that wrote the manifest.
    pub writer: WriterId,
    /// Size of the volume, sectors.
    pub size_sectors: u64,
    /// The packs have all writes up to this sequence number, and no later write.
    pub cut: Seq,
    /// Time of creation, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
    /// Grows with every compaction of the volume.
    pub generation: u32,
    /// The name the volume had.
    pub name: StoreName,
    /// The origin of a fork.
    pub origin: Option<Origin>,
    /// The packs, newest first: the first pack with a sector has the content of the sector. At most [`PACKS_MAX`].
    pub packs: Vec<PackRef>,
    /// The optional parts.
    pub sections: Sections,
}

impl Manifest {
    /// The manifest as bytes.
    ///
    /// # Errors
    /// When [`Self::decode`] would refuse the bytes: more than [`PACKS_MAX`] packs, impossible numbers, packs or sections.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.check_numbers()?;
        self.packs.iter().try_for_each(PackRef::check)?;
        self.sections.check(self.size_sectors)?;
        Ok(seal_body(self.version(), &self.body()))
    }

    fn check_numbers(&self) -> Result<(), FormatError> {
        let Self { number, epoch, size_sectors, cut, created_unix_millis, origin, packs, .. } = self;
        if packs.len() > PACKS_MAX || !(1..=NUMBER_MAX).contains(number) {
            return Err(FormatError::Malformed("number of packs or of the manifest"));
        }
        let possible = *epoch <= NUMBER_MAX
            && *size_sectors <= SIZE_SECTORS_MAX
            && *cut <= Seq::MAX
            && *created_unix_millis <= UNIX_MILLIS_MAX
            && origin.is_none_or(|origin| origin.manifest <= NUMBER_MAX);
        if possible { Ok(()) } else { Err(FormatError::Malformed("epoch, size, cut, date or origin")) }
    }

    /// The lowest version with room for the sections.
    pub(super) fn version(&self) -> u16 {
        if self.sections.is_empty() { FORMAT_VERSION } else { SECTIONS_VERSION }
    }

    /// Memory of the manifest for caches, bytes.
    pub fn memory_bytes(&self) -> usize {
        let Sections { damaged, uploaded, .. } = &self.sections;
        let parts = [size_of_val(&self.packs[..]), size_of_val(&damaged[..]), size_of_val(&uploaded[..])];
        parts.into_iter().fold(size_of::<Self>(), usize::saturating_add)
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(
            self.packs.len().saturating_mul(PACK_REF_BYTES).saturating_add(FIXED_BYTES_MAX),
        );
        body.extend_from_slice(&self.volume.0);
        body.extend_from_slice(&self.writer.0);
        let origin = self.origin.unwrap_or(Origin { volume: VolumeId([0; 16]), manifest: 0 });
        body.extend_from_slice(&origin.volume.0);
        let numbers = [
            origin.manifest,
            self.number,
            self.epoch,
            self.size_sectors,
            self.cut.0,
            self.created_unix_millis,
        ];
        body.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        // PACKS_MAX fits.
        let numbers = [self.generation, self.packs.len() as u32, 0];
        body.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        body.push(u8::from(self.origin.is_some()));
        put_name(&mut body, &self.name);
        self.packs.iter().for_each(|pack| pack.encode(&mut body));
        self.sections.encode(&mut body);
        body
    }

    /// Decodes a manifest. The caller compares volume and number with the expected ones.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (version, mut cursor) = open_version(bytes, MAGIC, SECTIONS_VERSION)?;
        let plain_bytes = cursor.u32()? as usize;
        if plain_bytes > BODY_BYTES_MAX {
            return Err(FormatError::Malformed("length of a manifest"));
        }
        let body = zstd::decompress(cursor.rest(), plain_bytes)?;
        let manifest = Self::decode_body(&body)?;
        if manifest.version() == version {
            Ok(manifest)
        } else {
            Err(FormatError::Malformed("version of a manifest"))
        }
    }

    fn decode_body(body: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(body);
        let (volume, writer) = (VolumeId(cursor.array()?), WriterId(cursor.array()?));
        let origin = Origin { volume: VolumeId(cursor.array()?), manifest: cursor.u64()? };
        let (number, epoch) = (cursor.u64()?, cursor.u64()?);
        let (size_sectors, cut, created_unix_millis) = (cursor.u64()?, Seq(cursor.u64()?), cursor.u64()?);
        let (generation, count) = (cursor.u32()?, cursor.u32()? as usize);
        cursor.zeroes(4)?;
        let origin = match cursor.u8()? {
            1 => Some(origin),
            0 if origin == (Origin { volume: VolumeId([0; 16]), manifest: 0 }) => None,
            _ => return Err(FormatError::Malformed("origin of a manifest")),
        };
        let name = take_name(&mut cursor)?;
        if count.checked_mul(PACK_REF_BYTES).is_none_or(|bytes| bytes > cursor.left()) {
            return Err(FormatError::Malformed("number of packs"));
        }
        let packs = (0..count).map(|_| PackRef::decode(&mut cursor)).collect::<Result<_, _>>()?;
        let sections = Sections::decode(&mut cursor, size_sectors)?;
        let manifest = Self {
            volume,
            number,
            epoch,
            writer,
            size_sectors,
            cut,
            created_unix_millis,
            generation,
            name,
            origin,
            packs,
            sections,
        };
        cursor.end()?;
        manifest.check_numbers().map(|()| manifest)
    }
}

pub(super) fn seal_body(version: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = begin_version(MAGIC, version);
    // PACKS_MAX and SECTIONS_BYTES_MAX bound the body to 36 MB.
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&zstd::compress(body));
    seal(&mut bytes);
    bytes
}

/// Appends a name: the length in one byte, then the characters.
pub(super) fn put_name(bytes: &mut Vec<u8>, name: &StoreName) {
    // A name has at most 128 characters.
    bytes.push(name.as_str().len() as u8);
    bytes.extend_from_slice(name.as_str().as_bytes());
}

pub(super) fn take_name(cursor: &mut Cursor<'_>) -> Result<StoreName, FormatError> {
    let length = cursor.u8()?;
    let text = std::str::from_utf8(cursor.bytes(length.into())?).ok();
    text.and_then(|text| text.parse().ok()).ok_or(FormatError::Malformed("name"))
}
