//! Checkpoints of many short pages, which several threads decode.

use std::path::Path;

use crate::cache::log::format::{ExtentReader, ExtentRows, KeptExtent, PageChain, PageKind};

/// Distributes the extents of the checkpoint at `path`, if there is one, over pages of three at most.
pub fn spread(path: &Path) {
    let Ok(bytes) = std::fs::read(path) else { return };
    let cache_id = bytes[16..32].try_into().unwrap();
    let (mut from, mut to, mut rest) = (PageChain::new(cache_id), PageChain::new(cache_id), &bytes[..]);
    let mut pages = Vec::new();
    while let Some(header) = rest.first_chunk() {
        let (page, behind) = rest.split_at(PageChain::page_len(header).unwrap());
        rest = behind;
        let (kind, body) = from.open(page).unwrap();
        if kind != PageKind::Extents {
            pages.extend(to.seal(kind, body).unwrap());
            continue;
        }
        let reader = ExtentReader::new(body).unwrap();
        let (export, last) = (reader.export(), reader.last_seq());
        let extents: Vec<KeptExtent> = reader.map(Result::unwrap).collect();
        if extents.is_empty() {
            pages.extend(to.seal(kind, body).unwrap());
        }
        for some in extents.chunks(3) {
            let mut rows = ExtentRows::new(export, last);
            assert!(some.iter().all(|extent| rows.push(extent)));
            pages.extend(to.seal(kind, rows.body()).unwrap());
        }
    }
    std::fs::write(path, pages).unwrap();
}
