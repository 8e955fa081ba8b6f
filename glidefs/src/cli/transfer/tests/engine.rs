//! The target after a copy, for any content.

use std::io::{Cursor, Read};

use proptest::prelude::*;

use super::support::{Checked, ImageContent, blank, content, other_than, read_all, run};
use crate::cli::transfer::copy::{Before, Report};
use crate::cli::transfer::ends::{BLOCK_BYTES, CopyTarget};
use crate::cli::transfer::raw_file::RawFile;
use crate::cli::transfer::stream::{Input, Out};

/// Bytes the export is longer than the image.
fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..20_000_u64]
}

fn total(report: &Report) -> u64 {
    report.copied_bytes + report.zero_bytes + report.equal_bytes + report.zeroed_bytes
}

/// The content the target has to hold.
fn wanted(content: &ImageContent, length_bytes: u64) -> Vec<u8> {
    let mut bytes = content.bytes();
    bytes.resize(usize::try_from(length_bytes).unwrap(), 0);
    bytes
}

/// A reader that returns fewer bytes than asked for.
struct Bits {
    content: Cursor<Vec<u8>>,
    sizes: Vec<usize>,
}

impl Read for Bits {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.sizes.rotate_left(1);
        let most = self.sizes.first().copied().unwrap_or(1).min(buffer.len());
        self.content.read(&mut buffer[..most])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_new_target_equals_the_source_and_has_holes_where_it_is_zero(
        content in content(), more_bytes in lengths(), chunk_blocks in 1..9_usize,
    ) {
        let length_bytes = content.length_bytes + more_bytes;
        let file = blank(length_bytes);
        let mut target = Checked::new(&file);
        let report = run(content.source(), &mut target, length_bytes, chunk_blocks, Before::Zeroes).unwrap();
        let found = read_all(&file);
        prop_assert!(found == wanted(&content, length_bytes) && target.synced);
        prop_assert_eq!(total(&report), length_bytes);
        prop_assert_eq!(report.equal_bytes + report.zeroed_bytes, 0);
        for (number, block) in found.chunks(BLOCK_BYTES).enumerate().filter(|(_, block)| block.iter().all(|&b| b == 0)) {
            let start = (number * BLOCK_BYTES) as u64;
            let data = target.next_data(start, start + block.len() as u64).unwrap();
            prop_assert_eq!(data, None, "block {} of zeroes is no hole", number);
        }
    }

    #[test]
    fn a_target_that_holds_something_equals_the_source_and_nothing_equal_is_written(
        (content, old) in content().prop_flat_map(other_than), more_bytes in lengths(), chunk_blocks in 1..9_usize,
        garbage in any::<bool>(),
    ) {
        let length_bytes = content.length_bytes + more_bytes;
        let file = old.file();
        file.set_len(length_bytes).unwrap();
        if garbage && more_bytes > 0 {
            std::os::unix::fs::FileExt::write_all_at(&file, &[1], length_bytes - 1).unwrap();
        }
        // `Checked` panics at a write of equal bytes.
        let mut target = Checked::new(&file);
        let report = run(content.source(), &mut target, length_bytes, chunk_blocks, Before::Something).unwrap();
        prop_assert!(read_all(&file) == wanted(&content, length_bytes));
        prop_assert_eq!(total(&report), length_bytes);
        let mut again = Checked::new(&file);
        let report = run(content.source(), &mut again, length_bytes, chunk_blocks, Before::Something).unwrap();
        prop_assert_eq!((report.copied_bytes, report.zeroed_bytes, again.steps), (0, 0, 0));
        prop_assert_eq!(total(&report), length_bytes);
    }

    #[test]
    fn a_copy_that_was_cut_off_anywhere_is_finished_and_nothing_is_written_twice(
        (content, old) in content().prop_flat_map(other_than), cut in 0..8_usize, chunk_blocks in 1..5_usize,
        is_new in any::<bool>(),
    ) {
        let length_bytes = content.length_bytes;
        let (file, before) =
            if is_new { (blank(length_bytes), Before::Zeroes) } else { (old.file(), Before::Something) };
        let mut first = Checked { steps_max: cut, ..Checked::new(&file) };
        let cut_off = run(content.source(), &mut first, length_bytes, chunk_blocks, before);
        prop_assert_eq!(cut_off.is_err(), first.steps > cut);
        prop_assert_eq!(first.synced, cut_off.is_ok());
        let mut second = Checked::new(&file);
        run(content.source(), &mut second, length_bytes, chunk_blocks, Before::Something).unwrap();
        prop_assert!(read_all(&file) == content.bytes());
        let done = &first.written[..first.written.len().min(cut)];
        for range in &second.written {
            prop_assert!(done.iter().all(|done| range.end <= done.start || done.end <= range.start));
        }
    }

    #[test]
    fn a_pipe_gets_and_gives_every_byte_in_order(
        content in content(), more_bytes in lengths(), chunk_blocks in 1..9_usize,
        sizes in prop::collection::vec(1..9000_usize, 1..5),
    ) {
        let length_bytes = content.length_bytes + more_bytes;
        let mut out = Out(Vec::new());
        let report = run(content.source(), &mut out, length_bytes, chunk_blocks, Before::Stream).unwrap();
        prop_assert!(out.0 == wanted(&content, length_bytes));
        prop_assert_eq!(report.copied_bytes, length_bytes);
        let file = blank(length_bytes);
        let input = Input::new(Bits { content: Cursor::new(content.bytes()), sizes });
        let mut target = Checked::new(&file);
        run(Box::new(input), &mut target, length_bytes, chunk_blocks, Before::Zeroes).unwrap();
        prop_assert!(read_all(&file) == wanted(&content, length_bytes));
    }
}

#[test]
fn a_target_without_holes_is_zeroed_by_writing() {
    use std::os::unix::fs::FileExt;
    // Memory files of huge pages do not exist everywhere, so the test calls the fallback of `zero` directly.
    let file = blank(3 << 20);
    file.write_all_at(&vec![7; 3 << 20], 0).unwrap();
    let mut disk = RawFile::new(file.try_clone().unwrap()).unwrap();
    disk.write_zeroes(512..(2 << 20) + 512).unwrap();
    let found = read_all(&file);
    assert!(found[512..(2 << 20) + 512].iter().all(|&byte| byte == 0));
    assert!(found[..512].iter().chain(&found[(2 << 20) + 512..]).all(|&byte| byte == 7));
}
