//! Recognising files that are not raw images, by the first or last bytes.
//!
//! Does not own the refusal. Invariant: no pattern matches content that a disk may begin with (a boot sector, a partition table, a
//! file system, LUKS).

use std::fmt;
use std::path::Path;

/// Bytes to look at from the start.
pub(super) const HEAD_BYTES: usize = 512;
/// Bytes to look at before the end.
pub(super) const TAIL_BYTES: usize = 512;

/// A format other than raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageFormat {
    /// A format of virtual disks.
    Disk(&'static str),
    /// Compressed or packed, and the command that unpacks to standard output.
    Packed(&'static str, &'static str),
}

/// Offset, bytes at the offset, format.
const PATTERNS: [(usize, &[u8], ImageFormat); 19] = [
    (0, b"QFI\xfb", ImageFormat::Disk("a qcow2 image")),
    (0, b"QED\0", ImageFormat::Disk("a QED image")),
    (0, b"KDMV", ImageFormat::Disk("a VMDK image")),
    (0, b"COWD", ImageFormat::Disk("a VMDK image")),
    (0, b"# Disk DescriptorFile", ImageFormat::Disk("the description of a VMDK image")),
    (0, b"conectix", ImageFormat::Disk("a VHD image")),
    (0, b"vhdxfile", ImageFormat::Disk("a VHDX image")),
    (0x40, b"\x7f\x10\xda\xbe", ImageFormat::Disk("a VDI image")),
    (0, b"WithoutFreeSpace", ImageFormat::Disk("a Parallels image")),
    (0, b"WithouFreSpacExt", ImageFormat::Disk("a Parallels image")),
    (0, b"\x1f\x8b\x08", ImageFormat::Packed("a gzip file", "gzip -dc")),
    (0, b"\xfd7zXZ\0", ImageFormat::Packed("an xz file", "xz -dc")),
    (0, b"\x28\xb5\x2f\xfd", ImageFormat::Packed("a zstd file", "zstd -dc")),
    (0, b"\x04\x22\x4d\x18", ImageFormat::Packed("an lz4 file", "lz4 -dc")),
    (0, b"LZIP", ImageFormat::Packed("an lzip file", "lzip -dc")),
    (4, b"1AY&SY", ImageFormat::Packed("a bzip2 file", "bzip2 -dc")),
    (0, b"PK\x03\x04", ImageFormat::Packed("a zip archive", "unzip -p")),
    (0, b"7z\xbc\xaf\x27\x1c", ImageFormat::Packed("a 7z archive", "7z x -so")),
    (257, b"ustar", ImageFormat::Packed("a tar archive", "tar -xOf")),
];

impl ImageFormat {
    /// The format of a file that begins with `head` and ends with `tail`; `None` when the file may be raw.
    pub fn detect(head: &[u8], tail: &[u8]) -> Option<Self> {
        let has = |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|at| at.starts_with(magic));
        let known = PATTERNS.iter().find(|(offset, magic, _)| has(*offset, magic));
        let fixed = || tail.starts_with(b"conectix").then_some(Self::Disk("a VHD image"));
        known.map(|(_, _, format)| *format).or_else(fixed)
    }

    /// How to make `path` raw.
    pub fn hint(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Disk(_) => format!("make one with `qemu-img convert -O raw {path} {path}.raw`"),
            Self::Packed(_, command) if path.to_string() == "-" => {
                format!("unpack it on the way, with `{command}`")
            }
            Self::Packed(_, command) => {
                format!("unpack it on the way, with `{command} {path} | glidefs import - --size SIZE …`")
            }
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Disk(what) | Self::Packed(what, _)) = self;
        f.write_str(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_known_by_its_bytes_and_says_how_it_becomes_raw() {
        for (offset, magic, format) in PATTERNS {
            let mut head = vec![b'x'; offset];
            head.extend(magic);
            assert_eq!(ImageFormat::detect(&head, b""), Some(format));
            let hint = format.hint(Path::new("x.img"));
            assert!(hint.contains("x.img") && hint.contains('`'), "{hint}");
            head.pop();
            assert_eq!(ImageFormat::detect(&head, b""), None, "{format}, cut short");
        }
        assert_eq!(ImageFormat::detect(&[0; 512], b"conectix\0\0"), Some(ImageFormat::Disk("a VHD image")));
    }

    #[test]
    fn what_a_disk_may_begin_with_is_raw() {
        let mut boot_sector = [0; 512];
        boot_sector[510..].copy_from_slice(&[0x55, 0xaa]);
        for head in [&[][..], &[0; 512], &boot_sector, b"LUKS\xba\xbe\0\x02", b"XFSB\0\0\x10\0", b"LABELONE"]
        {
            assert_eq!(ImageFormat::detect(head, head), None);
        }
    }
}
