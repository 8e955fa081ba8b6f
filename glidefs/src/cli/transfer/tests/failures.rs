//! Ends of copies that fail, and the memory of a copy.

use std::fs::File;
use std::io::{self, Cursor, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::errno::Errno;

use super::support::{Checked, ImageBlock, ImageContent, blank, run};
use crate::cli::transfer::copy::{Before, CopyOptions, CopyProgress, copy};
use crate::cli::transfer::ends::{BLOCK_BYTES, CopyPiece, CopySource, CopyTarget};
use crate::cli::transfer::fault::CopyError;
use crate::cli::transfer::raw_file::RawFile;
use crate::cli::transfer::stream::Input;

/// Calls the function at every write.
struct AtWrite<F>(F);

impl<F: FnMut(u64) -> io::Result<()> + Send> CopyTarget for AtWrite<F> {
    fn next_data(&mut self, offset: u64, _: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }

    fn read_at(&mut self, buffer: &mut [u8], _: u64) -> io::Result<()> {
        buffer.fill(0xff);
        Ok(())
    }

    fn write_at(&mut self, _: &[u8], offset: u64) -> io::Result<()> {
        self.0(offset)
    }

    fn zero(&mut self, range: Range<u64>) -> io::Result<()> {
        self.0(range.start)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn data(count: usize) -> ImageContent {
    let blocks = vec![ImageBlock::Data { seed: 1, at: 0 }; count];
    ImageContent { length_bytes: (count * BLOCK_BYTES) as u64, blocks }
}

#[test]
fn a_file_that_changes_its_length_while_it_is_read_is_an_error() {
    for change in [-20_i64, -1, 1] {
        let content = data(64);
        let file = content.file();
        let source = Box::new(RawFile::new(file.try_clone().unwrap()).unwrap());
        let mut target = AtWrite(|offset| {
            if offset == 0 {
                let blocks = 64_i64.checked_add(change).unwrap().unsigned_abs();
                file.set_len(blocks * BLOCK_BYTES as u64).unwrap();
            }
            Ok(())
        });
        let error = run(source, &mut target, content.length_bytes, 2, Before::Zeroes).unwrap_err();
        assert!(matches!(error, CopyError::Changed { .. } | CopyError::Ended { .. }), "{change}: {error}");
    }
}

#[test]
fn a_pipe_that_is_longer_than_the_export_is_an_error_and_one_of_its_length_is_not() {
    let length_bytes = 3 * BLOCK_BYTES;
    for more in [0, 1, BLOCK_BYTES] {
        let input = Box::new(Input::new(Cursor::new(vec![1; length_bytes + more])));
        let mut target = AtWrite(|_| Ok(()));
        let copied = run(input, &mut target, length_bytes as u64, 2, Before::Zeroes);
        assert_eq!(matches!(copied, Err(CopyError::TooLong { .. })), more > 0, "{copied:?}");
        assert_eq!(copied.is_ok(), more == 0);
    }
}

#[test]
fn every_failure_of_the_target_says_what_it_is_and_where() {
    for (errno, says) in [
        (Errno::ENOSPC, "no space is left for byte 4096"),
        (Errno::EDQUOT, "no space is left for byte 4096"),
        (Errno::ENXIO, "taken away at byte 4096"),
        (Errno::ENODEV, "taken away at byte 4096"),
        (Errno::EIO, "cannot write at byte 4096"),
    ] {
        let mut target = AtWrite(|offset| if offset == 4096 { Err(errno.into()) } else { Ok(()) });
        let error = run(data(4).source(), &mut target, 4 * 4096, 1, Before::Something).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let mut target = AtWrite(|_| Err(ErrorKind::WriteZero.into()));
    let error = run(data(4).source(), &mut target, 4 * 4096, 1, Before::Zeroes).unwrap_err();
    assert!(matches!(error, CopyError::Write { offset: 0, .. }), "{error}");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut target = RawFile::new(full).unwrap();
    let error = run(data(4).source(), &mut target, 4 * 4096, 1, Before::Zeroes).unwrap_err();
    assert!(matches!(error, CopyError::NoSpace { offset: 0 }), "{error}");
}

/// Returns the pieces of the function.
struct Made<F>(F);

impl<F: FnMut(u64) -> Result<CopyPiece, CopyError> + Send> CopySource for Made<F> {
    fn next(&mut self, offset: u64, buffer: &mut [u8]) -> Result<CopyPiece, CopyError> {
        buffer.fill(1);
        self.0(offset)
    }

    fn finish(&mut self) -> Result<(), CopyError> {
        Ok(())
    }
}

#[test]
fn a_read_that_fails_ends_the_copy_after_what_was_read_before() {
    let source = Made(|offset| match offset {
        8192 => Err(CopyError::Read { offset, source: ErrorKind::Other.into() }),
        _ => Ok(CopyPiece::Data(BLOCK_BYTES)),
    });
    let file = blank(1 << 20);
    let mut target = Checked::new(&file);
    let error = run(Box::new(source), &mut target, 1 << 20, 1, Before::Zeroes).unwrap_err();
    assert!(matches!(error, CopyError::Read { offset: 8192, .. }));
    assert_eq!(target.written, [0..4096, 4096..8192]);
    assert!(!target.synced);
}

#[test]
fn reading_goes_on_while_something_is_written_and_a_few_chunks_ahead_at_most() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let source = Made(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(CopyPiece::Data(BLOCK_BYTES))
    });
    let (mut written, mut ahead_max) = (0, 0);
    let mut target = AtWrite(|_| {
        std::thread::sleep(Duration::from_millis(5));
        ahead_max = ahead_max.max(reads.load(Ordering::SeqCst) - written);
        written += 1;
        Ok(())
    });
    run(Box::new(source), &mut target, 40 * 4096, 1, Before::Zeroes).unwrap();
    assert!((2..=4).contains(&ahead_max), "{ahead_max} chunks at once");
}

#[test]
fn a_copy_stops_when_it_is_asked_to_even_if_the_source_gives_nothing() {
    struct Silent(std::sync::mpsc::Receiver<()>);
    impl io::Read for Silent {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(0)
        }
    }
    let (_never, silence) = std::sync::mpsc::channel();
    let progress = Arc::new(CopyProgress::default());
    let shared = Arc::clone(&progress);
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        shared.stop();
    });
    let options = CopyOptions { length_bytes: 1 << 20, chunk_bytes: 4096, before: Before::Zeroes };
    let source = Box::new(Input::new(Silent(silence)));
    let stopped = copy(source, &mut AtWrite(|_| Ok(())), options, &progress);
    assert!(matches!(stopped, Err(CopyError::Stopped)), "{stopped:?}");
    stopper.join().unwrap();
}
