//! Content for copies, and a target that counts, checks and fails.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;

use crate::cli::transfer::copy::{Before, CopyOptions, CopyProgress, Report, copy};
use crate::cli::transfer::ends::{BLOCK_BYTES, CopySource, CopyTarget};
use crate::cli::transfer::fault::CopyError;
use crate::cli::transfer::raw_file::RawFile;

/// One block of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageBlock {
    Hole,
    Zeroes,
    /// One byte is not zero.
    Data {
        seed: u8,
        at: usize,
    },
}

impl ImageBlock {
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        if let Self::Data { seed, at } = self {
            bytes[at % BLOCK_BYTES] = seed.max(1);
        }
        bytes
    }
}

/// An image. The length may end inside the last block.
#[derive(Clone, Debug)]
pub struct ImageContent {
    pub blocks: Vec<ImageBlock>,
    pub length_bytes: u64,
}

impl ImageContent {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.blocks.iter().flat_map(|block| block.bytes()).collect();
        bytes.resize(usize::try_from(self.length_bytes).unwrap(), 0);
        bytes
    }

    /// A new file with this content and these holes.
    pub fn file(&self) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(self.length_bytes).unwrap();
        let bytes = self.bytes();
        for (number, block) in self.blocks.iter().enumerate() {
            let range = number * BLOCK_BYTES..bytes.len().min((number + 1) * BLOCK_BYTES);
            if *block != ImageBlock::Hole && !range.is_empty() {
                file.write_all_at(&bytes[range.clone()], range.start as u64).unwrap();
            }
        }
        file
    }

    pub fn source(&self) -> Box<dyn CopySource> {
        Box::new(RawFile::new(self.file()).unwrap())
    }
}

pub fn block() -> impl Strategy<Value = ImageBlock> {
    prop_oneof![
        2 => Just(ImageBlock::Hole),
        2 => Just(ImageBlock::Zeroes),
        4 => (1..4_u8, 0..BLOCK_BYTES).prop_map(|(seed, at)| ImageBlock::Data { seed, at }),
    ]
}

/// Images of 1 byte to 30 blocks; runs of the same block are likely.
pub fn content() -> impl Strategy<Value = ImageContent> {
    let runs = prop::collection::vec((block(), 1..6_usize), 1..6);
    (runs, 0..BLOCK_BYTES as u64).prop_map(|(runs, short_bytes)| {
        let blocks: Vec<ImageBlock> =
            runs.into_iter().flat_map(|(block, count)| std::iter::repeat_n(block, count)).collect();
        let length_bytes = (blocks.len() * BLOCK_BYTES) as u64 - short_bytes;
        ImageContent { blocks, length_bytes }
    })
}

/// `content`, and the same with some blocks changed.
pub fn other_than(content: ImageContent) -> impl Strategy<Value = (ImageContent, ImageContent)> {
    let count = content.blocks.len();
    prop::collection::vec(prop::option::of(block()), count).prop_map(move |changes| {
        let old = content.blocks.iter().zip(changes);
        let blocks = old.map(|(block, change)| change.unwrap_or(*block)).collect();
        (content.clone(), ImageContent { blocks, ..content })
    })
}

/// A file as a target. Panics at a write of bytes that the file holds already, and fails after `steps_max` changes.
pub struct Checked {
    pub disk: RawFile,
    pub steps: usize,
    pub steps_max: usize,
    pub written: Vec<Range<u64>>,
    pub synced: bool,
}

impl Checked {
    /// A target with the content of `file`.
    pub fn new(file: &File) -> Self {
        let disk = RawFile::new(file.try_clone().unwrap()).unwrap();
        Self { disk, steps: 0, steps_max: usize::MAX, written: Vec::new(), synced: false }
    }

    fn step(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert!(!bytes.is_empty(), "an empty write at {offset}");
        let mut there = vec![0; bytes.len()];
        self.disk.read_exact(&mut there, offset).unwrap();
        for (number, (new, old)) in bytes.chunks(BLOCK_BYTES).zip(there.chunks(BLOCK_BYTES)).enumerate() {
            assert_ne!(new, old, "block {number} after {offset} is there already");
        }
        self.steps += 1;
        self.written.push(offset..offset + bytes.len() as u64);
        if self.steps > self.steps_max { Err(io::Error::other("cut off")) } else { Ok(()) }
    }
}

impl CopyTarget for Checked {
    fn next_data(&mut self, offset: u64, end: u64) -> io::Result<Option<u64>> {
        self.disk.next_data(offset, end)
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.read_at(buffer, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.step(bytes, offset)?;
        self.disk.write_at(bytes, offset)
    }

    fn zero(&mut self, range: Range<u64>) -> io::Result<()> {
        self.step(&vec![0; usize::try_from(range.end - range.start).unwrap()], range.start)?;
        self.disk.zero(range)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.synced = true;
        self.disk.sync()
    }
}

/// Copies with chunks of `chunk_blocks`.
pub fn run(
    source: Box<dyn CopySource>,
    target: &mut dyn CopyTarget,
    length_bytes: u64,
    chunk_blocks: usize,
    before: Before,
) -> Result<Report, CopyError> {
    let options = CopyOptions { length_bytes, chunk_bytes: chunk_blocks * BLOCK_BYTES, before };
    copy(source, target, options, &Arc::new(CopyProgress::default()))
}

pub fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A new file of `length_bytes`, all of it one hole.
pub fn blank(length_bytes: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(length_bytes).unwrap();
    file
}
