//! Which files are not raw images: formats that are known by their first or last bytes.
//!
//! Does not own what is done about it. Invariant: what a disk's first sector may hold (a boot sector, a partition table, a file
//! system, LUKS) is in no pattern here.

use std::fmt;
use std::path::Path;

/// Bytes from the start that are looked at.
pub(super) const HEAD_BYTES: usize = 512;
/// Bytes before the end that are looked at.
pub(super) const TAIL_BYTES: usize = 512;

/// A format that is not raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A format of virtual disks.
    Disk(&'static str),
    /// Compressed or packed; with the command that unpacks it to standard output.
    Packed(&'static str, &'static str),
}

/// Offset, bytes there, what it is.
const PATTERNS: [(usize, &[u8], Format); 19] = [
    (0, b"QFI\xfb", Format::Disk("a qcow2 image")),
    (0, b"QED\0", Format::Disk("a QED image")),
    (0, b"KDMV", Format::Disk("a VMDK image")),
    (0, b"COWD", Format::Disk("a VMDK image")),
    (0, b"# Disk DescriptorFile", Format::Disk("the description of a VMDK image")),
    (0, b"conectix", Format::Disk("a VHD image")),
    (0, b"vhdxfile", Format::Disk("a VHDX image")),
    (0x40, b"\x7f\x10\xda\xbe", Format::Disk("a VDI image")),
    (0, b"WithoutFreeSpace", Format::Disk("a Parallels image")),
    (0, b"WithouFreSpacExt", Format::Disk("a Parallels image")),
    (0, b"\x1f\x8b\x08", Format::Packed("a gzip file", "gzip -dc")),
    (0, b"\xfd7zXZ\0", Format::Packed("an xz file", "xz -dc")),
    (0, b"\x28\xb5\x2f\xfd", Format::Packed("a zstd file", "zstd -dc")),
    (0, b"\x04\x22\x4d\x18", Format::Packed("an lz4 file", "lz4 -dc")),
    (0, b"LZIP", Format::Packed("an lzip file", "lzip -dc")),
    (4, b"1AY&SY", Format::Packed("a bzip2 file", "bzip2 -dc")),
    (0, b"PK\x03\x04", Format::Packed("a zip archive", "unzip -p")),
    (0, b"7z\xbc\xaf\x27\x1c", Format::Packed("a 7z archive", "7z x -so")),
    (257, b"ustar", Format::Packed("a tar archive", "tar -xOf")),
];

impl Format {
    /// What a file is that begins with `head` and ends with `tail`; `None` when it may be raw.
    pub fn detect(head: &[u8], tail: &[u8]) -> Option<Self> {
        let has = |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|at| at.starts_with(magic));
        let known = PATTERNS.iter().find(|(offset, magic, _)| has(*offset, magic));
        let fixed = || tail.starts_with(b"conectix").then_some(Self::Disk("a VHD image"));
        known.map(|(_, _, format)| *format).or_else(fixed)
    }

    /// What can be done with `path`.
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

impl fmt::Display for Format {
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
            assert_eq!(Format::detect(&head, b""), Some(format));
            let hint = format.hint(Path::new("x.img"));
            assert!(hint.contains("x.img") && hint.contains('`'), "{hint}");
            head.pop();
            assert_eq!(Format::detect(&head, b""), None, "{format}, cut short");
        }
        assert_eq!(Format::detect(&[0; 512], b"conectix\0\0"), Some(Format::Disk("a VHD image")));
    }

    #[test]
    fn what_a_disk_may_begin_with_is_raw() {
        let mut boot_sector = [0; 512];
        boot_sector[510..].copy_from_slice(&[0x55, 0xaa]);
        for head in [&[][..], &[0; 512], &boot_sector, b"LUKS\xba\xbe\0\x02", b"XFSB\0\0\x10\0", b"LABELONE"]
        {
            assert_eq!(Format::detect(head, head), None);
        }
    }
}
