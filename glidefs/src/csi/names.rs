//! Names: which export belongs to a volume of the driver, and which ids volumes and snapshots have.
//!
//! Owns the mapping. A volume's id is the name of the export, a snapshot's id EXPORT@SNAPSHOT. An export which the driver makes is
//! called `csi`, then the content where the volume is a copy, then the name:
//!
//! ```text
//! csi-NAME                   csi.HASH                   a volume which begins empty
//! csi.SOURCE-NAME            csi.SOURCE.HASH            a volume which begins as a copy
//! ```
//!
//! NAME is the name as it is, if it is a valid end of an export name and not long; HASH stands for any other name, SOURCE for the
//! id of the snapshot or volume which was copied. Invariants: two names never lead to one export; an export tells whether the driver
//! made it, and from what; each id has at most [`ID_CHARS_MAX`] characters.

use super::error::CsiError;
use crate::router::ExportName;

/// Longest field of text which the specification allows where it sets no other bound, bytes.
pub(super) const ID_CHARS_MAX: usize = 128;
/// Longest name which stands in the export's name as it is, characters.
const PLAIN_CHARS_MAX: usize = 48;
/// How the name of each export and snapshot of the driver begins.
const MARK: &str = "csi";
/// Hex digits for a name, and for a source.
const HASH_DIGITS: usize = 32;
const SOURCE_DIGITS: usize = 16;

/// The id of a snapshot: EXPORT@SNAPSHOT.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SnapshotId {
    pub export: ExportName,
    pub snapshot: ExportName,
}

impl SnapshotId {
    /// The snapshot with the id `id`; `None` for text which is the id of no snapshot.
    pub fn parse(id: &str) -> Option<Self> {
        let (export, snapshot) = id.split_once('@')?;
        Some(Self { export: ExportName::new(export).ok()?, snapshot: ExportName::new(snapshot).ok()? })
    }
}

impl std::fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.export, self.snapshot)
    }
}

/// The content which a volume begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Volume(ExportName),
    Snapshot(SnapshotId),
}

impl Source {
    /// The export with the content, and its snapshot if the content is that of one.
    pub fn place(&self) -> (&ExportName, Option<&ExportName>) {
        match self {
            Self::Volume(volume) => (volume, None),
            Self::Snapshot(id) => (&id.export, Some(&id.snapshot)),
        }
    }
}

/// The end of each name which the driver gives to an export or snapshot: stands for the name in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameSuffix(String);

impl NameSuffix {
    /// The suffix for `name`, the field `name` of a request.
    pub fn of(name: &str) -> Result<Self, CsiError> {
        if name.is_empty() {
            return Err(CsiError::missing("name"));
        }
        if name.len() > ID_CHARS_MAX {
            let reason = format!("the name has {} bytes: use at most {ID_CHARS_MAX}", name.len());
            return Err(CsiError::invalid("name", reason));
        }
        let is_plain = name.len() <= PLAIN_CHARS_MAX
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        Ok(Self(if is_plain { format!("-{name}") } else { format!(".{}", digits(name, HASH_DIGITS)) }))
    }

    /// The whole name: of the export of a volume, or of a snapshot.
    pub fn full_name(&self, source: Option<&Source>) -> Result<ExportName, CsiError> {
        let source = source.map_or(String::new(), |source| {
            let text = match source {
                Source::Volume(volume) => format!("volume {volume}"),
                Source::Snapshot(snapshot) => format!("snapshot {snapshot}"),
            };
            format!(".{}", digits(&text, SOURCE_DIGITS))
        });
        ExportName::new(&format!("{MARK}{source}{}", self.0))
            .map_err(|error| CsiError::invalid("name", error))
    }

    /// Whether `export` was made for a volume with this suffix, whatever the volume began with.
    pub fn ends(&self, export: &str) -> bool {
        suffix_of(export) == Some(&self.0)
    }
}

/// The name of the export of the volume `id`. No volume has an id which is no name.
pub(super) fn volume_name(id: &str) -> Result<ExportName, CsiError> {
    ExportName::new(id).map_err(|_| CsiError::no_volume(id))
}

/// Whether the driver made the export, or the snapshot, with this name.
pub(super) fn is_own(name: &str) -> bool {
    suffix_of(name).is_some()
}

/// The suffix of the name of an export or snapshot; `None` for one which the driver did not make.
fn suffix_of(name: &str) -> Option<&str> {
    let rest = name.strip_prefix(MARK)?;
    if rest.starts_with('-') {
        return (rest.len() > 1).then_some(rest);
    }
    let after = rest.strip_prefix('.')?;
    if is_hex(after, HASH_DIGITS) {
        return Some(rest);
    }
    let (source, suffix) = after.split_at_checked(SOURCE_DIGITS)?;
    let is_suffix = match suffix.strip_prefix('.') {
        Some(hash) => is_hex(hash, HASH_DIGITS),
        None => suffix.len() > 1 && suffix.starts_with('-'),
    };
    (is_hex(source, SOURCE_DIGITS) && is_suffix).then_some(suffix)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn digits(text: &str, digits: usize) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(digits);
    hex
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn volume(name: &str) -> Source {
        Source::Volume(ExportName::new(name).unwrap())
    }

    #[test]
    fn a_name_of_kubernetes_can_be_read_in_the_name_of_the_export() {
        let suffix = NameSuffix::of("pvc-3fd8a1f2-32a6-4b42-9f3c-9a2c7f1f0b11").unwrap();
        let blank = suffix.full_name(None).unwrap();
        assert_eq!(blank.as_str(), "csi-pvc-3fd8a1f2-32a6-4b42-9f3c-9a2c7f1f0b11");
        let copy = suffix.full_name(Some(&volume("csi-a"))).unwrap();
        assert!(copy.as_str().ends_with("-pvc-3fd8a1f2-32a6-4b42-9f3c-9a2c7f1f0b11"), "{copy}");
    }

    #[test]
    fn names_that_no_export_may_have_are_mapped_all_the_same() {
        for name in ["ü", "a/b", "../x", " ", "@", &"x".repeat(128), &"ß".repeat(64)] {
            let suffix = NameSuffix::of(name).unwrap();
            let export = suffix.full_name(None).unwrap();
            assert!(is_own(export.as_str()) && suffix.ends(export.as_str()), "{name:?} {export}");
        }
        assert!(matches!(
            NameSuffix::of(""),
            Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
        ));
        assert!(matches!(
            NameSuffix::of(&"x".repeat(129)),
            Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
        ));
    }

    #[test]
    fn a_copy_is_no_blank_volume_and_no_copy_of_something_else() {
        let suffix = NameSuffix::of("data").unwrap();
        let snapshot = Source::Snapshot(SnapshotId::parse("csi-a@csi-s").unwrap());
        let exports = [
            suffix.full_name(None).unwrap(),
            suffix.full_name(Some(&volume("csi-a"))).unwrap(),
            suffix.full_name(Some(&volume("csi-b"))).unwrap(),
            suffix.full_name(Some(&snapshot)).unwrap(),
        ];
        for (index, export) in exports.iter().enumerate() {
            assert!(suffix.ends(export.as_str()), "{export}");
            assert!(!exports[..index].contains(export), "{export}");
        }
    }

    #[test]
    fn exports_of_others_are_not_the_drivers() {
        for name in [
            "vm-1",
            "csi",
            "csi-",
            "csix",
            "csi.",
            "csi.0123456789abcdef",
            "csi.0123456789abcdef-",
            "csi_a",
            "CSI-a",
        ] {
            assert!(!is_own(name), "{name}");
        }
    }

    #[test]
    fn only_two_names_with_an_at_between_are_the_id_of_a_snapshot() {
        for id in ["", "a", "@", "a@", "@a", "a@b@c", "non-existing-snapshot-id", "a/b@c", "a@../b"] {
            assert_eq!(SnapshotId::parse(id), None, "{id}");
        }
        assert_eq!(SnapshotId::parse("a@b").unwrap().to_string(), "a@b");
    }

    proptest! {
        #[test]
        fn two_names_never_lead_to_one_export(
            a in "[a-f0-9.@é-]{1,52}", b in "[a-f0-9.@é-]{1,52}", from in proptest::option::of("[a-c]"),
        ) {
            let source = from.as_deref().map(volume);
            let export = |name: &str, source| NameSuffix::of(name).unwrap().full_name(source).unwrap();
            prop_assert_eq!(export(&a, None) == export(&b, None), a == b);
            prop_assert_eq!(export(&a, None) == export(&b, source.as_ref()), a == b && source.is_none());
            prop_assert_eq!(NameSuffix::of(&a).unwrap().ends(export(&b, source.as_ref()).as_str()), a == b);
        }

        #[test]
        fn every_id_is_as_short_as_the_specification_wants(name in "\\PC{1,32}", snapshot in "\\PC{1,32}") {
            let source = volume("csi-a");
            let export = NameSuffix::of(&name).unwrap().full_name(Some(&source)).unwrap();
            let snapshot = NameSuffix::of(&snapshot).unwrap().full_name(None).unwrap();
            let id = SnapshotId { export, snapshot };
            prop_assert!(id.to_string().len() <= ID_CHARS_MAX);
        }
    }
}
