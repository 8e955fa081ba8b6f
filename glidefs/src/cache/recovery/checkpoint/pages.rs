//! The pages of a checkpoint, in order, and pages of extents in batches, which are read in order and checked later, by any thread.
//!
//! Does not own the bytes of a page (`log/format/checkpoint`), or the extents (`extents`). Invariants: the batches of a file are the
//! same for any number of threads; a batch takes no more memory than [`Room`] says.

use std::io::Read;
use std::sync::Mutex;

use crate::cache::log::format::{
    CHECKPOINT_HEADER_BYTES, CHECKPOINT_PAGE_BYTES, FormatError, PageChain, PageKind, Row, decode_rows,
};
use crate::cache::log::scan::Unusable;
use crate::cache::volume::loading::GainedRefs;
use crate::locks::MutexExt;

/// Room for the pages of a batch: so many extents that adding up the references of a batch costs little beside. In tests a batch has
/// few pages, if these are short.
const BATCH_BYTES: usize = if cfg!(test) { CHECKPOINT_PAGE_BYTES + 200 } else { 1 << 20 };

/// The pages of a checkpoint that are not read yet.
pub(super) struct Pages<'s> {
    source: Box<dyn Read + Send + 's>,
    /// The place of the next page.
    chain: PageChain,
    /// The beginning of the next page, if read already.
    header: Option<[u8; CHECKPOINT_HEADER_BYTES]>,
    page: Vec<u8>,
}

impl<'s> Pages<'s> {
    pub fn new(source: Box<dyn Read + Send + 's>, chain: PageChain) -> Self {
        Self { source, chain, header: None, page: vec![0; CHECKPOINT_PAGE_BYTES] }
    }

    /// The subject of the next page, which is not checked.
    fn next_kind(&mut self) -> Result<Option<PageKind>, Unusable> {
        Ok(PageChain::page_kind(&self.header()?))
    }

    fn header(&mut self) -> Result<[u8; CHECKPOINT_HEADER_BYTES], Unusable> {
        if let Some(header) = self.header {
            return Ok(header);
        }
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        self.source.read_exact(&mut header).map_err(Unusable::Unreadable)?;
        self.header = Some(header);
        Ok(header)
    }

    /// Reads the next page into the beginning of `room`, which is long enough for any page. The page is not checked.
    fn read<'r>(&mut self, room: &'r mut [u8]) -> Result<&'r [u8], Unusable> {
        let header = self.header()?;
        let len = PageChain::page_len(&header).map_err(Unusable::Damaged)?;
        let needed = FormatError::Length { found: room.len(), needed: len };
        let page = room.get_mut(..len).ok_or(Unusable::Damaged(needed))?;
        let (beginning, rest) = page.split_at_mut(header.len());
        beginning.copy_from_slice(&header);
        self.source.read_exact(rest).map_err(Unusable::Unreadable)?;
        self.header = None;
        Ok(page)
    }

    /// Reads and checks the next pages, of rows, up to a page of another kind.
    pub fn rows<R: Row>(&mut self, kind: PageKind) -> Result<Vec<R>, Unusable> {
        let mut rows = Vec::new();
        while self.next_kind()? == Some(kind) {
            rows.extend(decode_rows(self.next()?.1).map_err(Unusable::Damaged)?);
        }
        Ok(rows)
    }

    /// Reads and checks the next page: kind and body.
    pub fn next(&mut self) -> Result<(PageKind, &[u8]), Unusable> {
        let mut room = std::mem::take(&mut self.page);
        let len = self.read(&mut room).map(<[u8]>::len);
        self.page = room;
        let page = self.page.get(..len?).unwrap_or_default();
        self.chain.open(page).map_err(Unusable::Damaged)
    }
}

/// The memory of a batch, for the next one: [`BATCH_BYTES`], and two counters of references for each segment.
pub(super) struct Room {
    bytes: Vec<u8>,
    pub refs: GainedRefs,
}

impl Default for Room {
    fn default() -> Self {
        // Zeroes which nobody looks at take no memory.
        Self { bytes: vec![0; BATCH_BYTES], refs: GainedRefs::default() }
    }
}

/// The next pages of extents, in batches. Ends before the first page of another kind, or after an error.
pub(super) struct Batches<'a, 's> {
    pages: &'a mut Pages<'s>,
    rooms: &'a Mutex<Vec<Room>>,
    is_over: bool,
}

impl<'a, 's> Batches<'a, 's> {
    /// `rooms` are those of batches done with.
    pub fn new(pages: &'a mut Pages<'s>, rooms: &'a Mutex<Vec<Room>>) -> Self {
        Self { pages, rooms, is_over: false }
    }
}

impl Iterator for Batches<'_, '_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        if self.is_over {
            return None;
        }
        let room = self.rooms.lock_whole().pop().unwrap_or_default();
        let mut batch = Batch { chain: self.pages.chain, len: 0, error: None, room };
        match batch.fill(self.pages) {
            Ok(is_full) => self.is_over = !is_full,
            Err(error) => (self.is_over, batch.error) = (true, Some(error)),
        }
        (batch.len > 0 || batch.error.is_some()).then_some(batch)
    }
}

/// Pages of extents as read from the file, unchecked.
pub(super) struct Batch {
    /// The place of the first page.
    pub chain: PageChain,
    len: usize,
    /// Why the page behind the last one could not be read.
    pub error: Option<Unusable>,
    pub room: Room,
}

impl Batch {
    /// Reads pages of extents while there is room for one more. `false` when another page is next.
    fn fill(&mut self, pages: &mut Pages<'_>) -> Result<bool, Unusable> {
        while let Some(room) = self.room.bytes.get_mut(self.len..)
            && room.len() >= CHECKPOINT_PAGE_BYTES
        {
            if pages.next_kind()? != Some(PageKind::Extents) {
                return Ok(false);
            }
            let page = pages.read(room)?;
            let (len, behind) = (page.len(), pages.chain.behind(page));
            self.len = self.len.saturating_add(len);
            pages.chain = behind.map_err(Unusable::Damaged)?;
        }
        Ok(true)
    }

    pub fn pages(&self) -> impl Iterator<Item = &[u8]> {
        pages_of(self.room.bytes.get(..self.len).unwrap_or_default())
    }
}

/// The pages of which `bytes` are made.
fn pages_of(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        // The length was good when the page was read.
        let len = PageChain::page_len(bytes.first_chunk()?).ok()?;
        let page;
        (page, bytes) = bytes.split_at_checked(len)?;
        Some(page)
    })
}
