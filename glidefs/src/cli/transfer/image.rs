//! The image to import: which files are accepted, and the length of the image.
//!
//! Does not own the reading: `raw_file` and `stream` do.

use std::fs::{self, File};
use std::io::{Cursor, ErrorKind, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::ends::CopySource;
use super::error::TransferError;
use super::format::{HEAD_BYTES, ImageFormat, TAIL_BYTES};
use super::raw_file::RawFile;
use super::stream::{Input, fill};

pub(super) struct Image {
    pub source: Box<dyn CopySource>,
    /// `None` for a pipe: the length is not known.
    pub length_bytes: Option<u64>,
}

impl Image {
    /// Opens `path`, and refuses other formats than raw unless `force_raw` is set.
    pub fn open(path: &Path, force_raw: bool) -> Result<Self, TransferError> {
        let image = |what| TransferError::NotAFile { path: path.into(), what, wanted: "a raw image" };
        let file_error = |action, source| TransferError::File { action, path: path.into(), source };
        let metadata = fs::metadata(path).map_err(|source| match source.kind() {
            ErrorKind::NotFound => TransferError::NoFile { path: path.into() },
            _ => file_error("look at", source),
        })?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            return Err(image("a directory"));
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(TransferError::NotAFile {
                path: path.into(),
                what: "neither a file nor a block device",
                wanted: "`-` to read from standard input",
            });
        }
        let disk = File::open(path).and_then(RawFile::new).map_err(|source| file_error("open", source))?;
        let length_bytes = disk.length_bytes();
        if length_bytes == 0 {
            return Err(TransferError::Empty { path: path.into() });
        }
        let end_of = |bytes: usize| bytes.min(usize::try_from(length_bytes).unwrap_or(usize::MAX));
        let (mut head, mut tail) = (vec![0; end_of(HEAD_BYTES)], vec![0; end_of(TAIL_BYTES)]);
        let tail_offset = length_bytes - tail.len() as u64;
        let read = disk.read_exact(&mut head, 0);
        read.and_then(|()| disk.read_exact(&mut tail, tail_offset))
            .map_err(|source| file_error("read", source))?;
        check(path, &head, &tail, force_raw)?;
        Ok(Self { source: Box::new(disk), length_bytes: Some(length_bytes) })
    }

    pub fn standard_input(force_raw: bool) -> Result<Self, TransferError> {
        let path = Path::new("-");
        let input = std::io::stdin();
        if input.is_terminal() {
            return Err(TransferError::Terminal { what: "standard input" });
        }
        let file = input.as_fd().try_clone_to_owned();
        let read_error = |source| TransferError::File { action: "read", path: path.into(), source };
        Self::stream(File::from(file.map_err(read_error)?), force_raw)
    }

    fn stream(mut reader: impl Read + Send + 'static, force_raw: bool) -> Result<Self, TransferError> {
        let path = Path::new("-");
        let mut head = vec![0; HEAD_BYTES];
        let bytes = fill(&mut reader, &mut head).map_err(|source| TransferError::File {
            action: "read",
            path: path.into(),
            source,
        })?;
        head.truncate(bytes);
        if head.is_empty() {
            return Err(TransferError::Empty { path: path.into() });
        }
        check(path, &head, &[], force_raw)?;
        let source = Box::new(Input::new(Cursor::new(head).chain(reader)));
        Ok(Self { source, length_bytes: None })
    }
}

fn check(path: &Path, head: &[u8], tail: &[u8], force_raw: bool) -> Result<(), TransferError> {
    match ImageFormat::detect(head, tail) {
        Some(format) if !force_raw => Err(TransferError::NotRaw { path: path.into(), format }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::transfer::ends::CopyPiece;

    fn refusal(opened: Result<Image, TransferError>) -> String {
        opened.err().expect("it is refused").to_string()
    }

    #[test]
    fn what_cannot_be_imported_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut fixed_vhd = vec![0; 4096];
        fixed_vhd[3584..3592].copy_from_slice(b"conectix");
        for (path, says) in [
            (dir.path().join("none"), "there is no file"),
            (dir.path().to_path_buf(), "a directory"),
            (fifo, "`-`"),
            (file("empty", b""), "is empty"),
            (file("a.qcow2", b"QFI\xfb\0\0\0\x03"), "qemu-img convert -O raw"),
            (file("a.vhd", &fixed_vhd), "a VHD image"),
            (file("a.gz", b"\x1f\x8b\x08"), "gzip -dc"),
        ] {
            let message = refusal(Image::open(&path, false));
            assert!(message.contains(says) && !message.contains('\n'), "{message}");
        }
        assert_eq!(Image::open(&dir.path().join("a.qcow2"), true).unwrap().length_bytes, Some(8));
        assert_eq!(Image::open(&file("b", b"x"), false).unwrap().length_bytes, Some(1));
    }

    #[test]
    fn a_stream_is_looked_at_before_anything_is_made_and_nothing_of_it_is_lost() {
        assert!(refusal(Image::stream(&b""[..], false)).contains("is empty"));
        assert!(refusal(Image::stream(&b"\x28\xb5\x2f\xfd more"[..], false)).contains("zstd -dc"));
        let content: Vec<u8> = (0..1000_u32).map(|at| u8::try_from(at % 251).unwrap() + 1).collect();
        let mut image = Image::stream(Cursor::new(content.clone()), false).unwrap();
        let mut read = vec![0xff; 1024];
        assert_eq!(image.source.next(0, &mut read).unwrap(), CopyPiece::Data(1024));
        assert_eq!(read[..1000], content);
        assert!(read[1000..].iter().all(|&byte| byte == 0));
        image.source.finish().unwrap();
    }
}
