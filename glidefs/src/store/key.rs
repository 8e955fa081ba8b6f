//! Keys: the places of objects in a store, below the configured prefix.
//!
//! Owns the layout. Invariant: a key reads back from its text, and no other text is a key.
//!
//! ```text
//! glidefs.json                                     marker of the store, see `format::Marker`
//! names/<name>                                     the volume behind a name
//! volumes/<volume id>/manifests/<20 digits>        states of the volume, numbered
//! volumes/<volume id>/packs/<pack id>              data of the volume
//! volumes/<volume id>/snapshots/<name>             named states of the volume
//! volumes/<volume id>/fences/<20 digits>           numbers with which hosts took the volume
//! deleted/<name>/<volume id>                       deleted volumes by their last name
//! gone/<volume id>                                 graves of volumes
//! gc/<name>                                        candidates of garbage collection
//! ```

use std::fmt;

use super::ids::{PackId, StoreName, VolumeId};

/// One object of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The marker, which makes the place a store.
    Marker,
    /// The record of a name: the volume behind the name.
    Name(StoreName),
    /// State of a volume, by number.
    Manifest(VolumeId, u64),
    /// A pack with data of a volume.
    Pack(VolumeId, PackId),
    /// State of a volume, by name.
    Snapshot(VolumeId, StoreName),
    /// The mark on a number with which a host took a volume: garbage collection never frees it.
    Fence(VolumeId, u64),
    /// What stays of a volume that is gone, so that its identity is not used again.
    Grave(VolumeId),
    /// A deleted volume, by the last name of the volume.
    Deleted(StoreName, VolumeId),
    /// Notes of the garbage collector.
    Gc(StoreName),
}

/// A set of keys with a common beginning, which can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Folder {
    /// All objects of the store.
    All,
    /// Records of the names of exports.
    Names,
    /// All objects of one volume.
    Volume(VolumeId),
    /// Manifests of a volume, listed by ascending number.
    Manifests(VolumeId),
    /// All packs of a volume.
    Packs(VolumeId),
    /// All snapshots of a volume.
    Snapshots(VolumeId),
    /// All fences of a volume.
    Fences(VolumeId),
    /// Deleted volumes by name.
    Deleted,
    /// Notes of the garbage collector.
    Gc,
}

const MARKER: &str = "glidefs.json";
const NUMBER_DIGITS: usize = 20;

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Marker => f.write_str(MARKER),
            Self::Name(name) => write!(f, "names/{name}"),
            Self::Manifest(volume, number) => write!(f, "volumes/{volume}/manifests/{number:020}"),
            Self::Pack(volume, pack) => write!(f, "volumes/{volume}/packs/{pack}"),
            Self::Snapshot(volume, name) => write!(f, "volumes/{volume}/snapshots/{name}"),
            Self::Fence(volume, number) => write!(f, "volumes/{volume}/fences/{number:020}"),
            Self::Deleted(name, volume) => write!(f, "deleted/{name}/{volume}"),
            Self::Grave(volume) => write!(f, "gone/{volume}"),
            Self::Gc(name) => write!(f, "gc/{name}"),
        }
    }
}

impl Key {
    /// The key that prints as `text`; `None` for text that is no key.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = [""; 5];
        let mut count = 0;
        for part in text.split('/') {
            *parts.get_mut(count)? = part;
            count += 1;
        }
        Some(match parts[..count] {
            [MARKER] => Self::Marker,
            ["names", name] => Self::Name(name.parse().ok()?),
            ["gc", name] => Self::Gc(name.parse().ok()?),
            ["gone", volume] => Self::Grave(volume.parse().ok()?),
            ["deleted", name, volume] => Self::Deleted(name.parse().ok()?, volume.parse().ok()?),
            ["volumes", volume, kind, last] => {
                let volume = volume.parse().ok()?;
                match kind {
                    "manifests" => Self::Manifest(volume, number(last)?),
                    "packs" => Self::Pack(volume, last.parse().ok()?),
                    "fences" => Self::Fence(volume, number(last)?),
                    "snapshots" => Self::Snapshot(volume, last.parse().ok()?),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}

fn number(text: &str) -> Option<u64> {
    let is_number = text.len() == NUMBER_DIGITS && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The beginning of the keys, without a slash at the end.
impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Names => f.write_str("names"),
            Self::Volume(volume) => write!(f, "volumes/{volume}"),
            Self::Manifests(volume) => write!(f, "volumes/{volume}/manifests"),
            Self::Packs(volume) => write!(f, "volumes/{volume}/packs"),
            Self::Snapshots(volume) => write!(f, "volumes/{volume}/snapshots"),
            Self::Fences(volume) => write!(f, "volumes/{volume}/fences"),
            Self::Deleted => f.write_str("deleted"),
            Self::Gc => f.write_str("gc"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Key> {
        let name = || "[a-zA-Z0-9][a-zA-Z0-9._-]{0,12}".prop_map(|name| name.parse::<StoreName>().unwrap());
        let volume = || any::<[u8; 16]>().prop_map(VolumeId);
        prop_oneof![
            Just(Key::Marker),
            name().prop_map(Key::Name),
            (volume(), any::<u64>()).prop_map(|(volume, number)| Key::Manifest(volume, number)),
            (volume(), any::<[u8; 16]>()).prop_map(|(volume, pack)| Key::Pack(volume, PackId(pack))),
            (volume(), name()).prop_map(|(volume, name)| Key::Snapshot(volume, name)),
            (volume(), any::<u64>()).prop_map(|(volume, number)| Key::Fence(volume, number)),
            volume().prop_map(Key::Grave),
            (name(), volume()).prop_map(|(name, volume)| Key::Deleted(name, volume)),
            name().prop_map(Key::Gc),
        ]
    }

    proptest! {
        #[test]
        fn a_key_reads_back_from_its_text(key in key()) {
            prop_assert_eq!(Key::parse(&key.to_string()), Some(key));
        }

        #[test]
        fn changed_text_is_another_key_or_none(
            key in key(), at in any::<prop::sample::Index>(), by in "[ -~]{0,2}",
        ) {
            let mut text = key.to_string();
            let at = at.index(text.len());
            text.replace_range(at..=at, &by);
            if let Some(other) = Key::parse(&text) {
                prop_assert_eq!(other.to_string(), text);
            }
        }

        #[test]
        fn manifests_sort_as_their_numbers_do(a: u64, b: u64) {
            let key = |number| Key::Manifest(VolumeId([7; 16]), number).to_string();
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
        }
    }

    #[test]
    fn what_is_not_ours_is_no_key() {
        let volume = VolumeId([0xab; 16]);
        for text in [
            String::new(),
            "glidefs.json/".into(),
            "/glidefs.json".into(),
            "names/".into(),
            "names/a/b".into(),
            "names//a".into(),
            "deleted/a".into(),
            format!("volumes/{volume}"),
            format!("volumes/{volume}/manifests/1"),
            format!("volumes/{volume}/manifests/+0000000000000000001"),
            format!("volumes/{volume}/manifests/99999999999999999999"),
            format!("volumes/{volume}/packs/{}", "A".repeat(32)),
            format!("volumes/{volume}/packs/{volume}/x/y"),
            format!("Volumes/{volume}/deleted"),
        ] {
            assert_eq!(Key::parse(&text), None, "{text}");
        }
    }
}
