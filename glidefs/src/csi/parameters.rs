//! Parameters of a StorageClass, and of a VolumeAttributesClass.
//!
//! Owns the keys and their text. Does not own the bounds of values (`router`). Invariant: an unknown key is refused, so that a
//! mistyped promise about durability is not a promise which nobody keeps.

use std::collections::HashMap;
use std::str::FromStr;

use super::error::CsiError;
use crate::api::wire::{Durability, LimitsChange, OnUnreachable};
use crate::config::TimeSpan;

/// Keys with this beginning come from the sidecars, and say whose volume or snapshot it is.
const SIDECARS: &str = "csi.storage.k8s.io/";

/// The parameters which stay with a volume as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fixed {
    pub durability: Durability,
    pub on_unreachable: Option<OnUnreachable>,
    pub queues: Option<u64>,
    pub queue_depth: Option<u64>,
}

/// The parameters which can be changed while a volume is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mutable {
    pub limits: LimitsChange,
    pub weight: Option<u64>,
}

/// Reads the parameters of a new volume: those of the StorageClass, then those of the VolumeAttributesClass, which win.
pub(super) fn of_volume(
    parameters: &HashMap<String, String>,
    mutable: &HashMap<String, String>,
) -> Result<(Fixed, Mutable), CsiError> {
    let (mut fixed, mut settings) = (Fixed::default(), Mutable::default());
    for (key, value) in parameters {
        match key.as_str() {
            "durability" => fixed.durability = parse(key, value)?,
            "onUnreachable" => fixed.on_unreachable = Some(parse(key, value)?),
            "queues" => fixed.queues = Some(parse(key, value)?),
            "queueDepth" => fixed.queue_depth = Some(parse(key, value)?),
            _ if key.starts_with(SIDECARS) => {}
            _ if settings.set(key, value)? => {}
            _ => return Err(unknown(key)),
        }
    }
    settings.set_all(mutable)?;
    Ok((fixed, settings))
}

/// Reads the parameters of a VolumeAttributesClass.
pub(super) fn of_change(mutable: &HashMap<String, String>) -> Result<Mutable, CsiError> {
    let mut settings = Mutable::default();
    settings.set_all(mutable)?;
    Ok(settings)
}

/// Checks the parameters of a VolumeSnapshotClass: there are none beside those of the sidecars.
pub(super) fn check_of_snapshot(parameters: &HashMap<String, String>) -> Result<(), CsiError> {
    match parameters.keys().find(|key| !key.starts_with(SIDECARS)) {
        Some(key) => Err(unknown(key)),
        None => Ok(()),
    }
}

impl Mutable {
    fn set_all(&mut self, parameters: &HashMap<String, String>) -> Result<(), CsiError> {
        for (key, value) in parameters {
            if !self.set(key, value)? {
                return Err(unknown(key));
            }
        }
        Ok(())
    }

    /// Takes a parameter over. Returns whether the key is one of these.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, CsiError> {
        let limits = &mut self.limits;
        match key {
            "readIops" => limits.read_iops = Some(rate(key, value)?),
            "writeIops" => limits.write_iops = Some(rate(key, value)?),
            "readBytesPerSecond" => limits.read_bytes_per_second = Some(rate(key, value)?),
            "writeBytesPerSecond" => limits.write_bytes_per_second = Some(rate(key, value)?),
            "burst" => {
                let span: TimeSpan = parse(key, value)?;
                limits.burst_milliseconds = Some(u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX));
            }
            "weight" => self.weight = Some(parse(key, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A limit, or `None` for the word which ends the limit.
fn rate<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<Option<T>, CsiError> {
    if value == "none" { Ok(None) } else { parse(key, value).map(Some) }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T, CsiError> {
    value.parse().map_err(|error| CsiError::Invalid {
        field: "parameters",
        reason: format!("{key} is {value:?}: {error}"),
    })
}

fn unknown(key: &str) -> CsiError {
    const KEYS: &str = "durability, onUnreachable, queues, queueDepth, and for a VolumeAttributesClass as well readIops, \
                        writeIops, readBytesPerSecond, writeBytesPerSecond, burst and weight";
    CsiError::Invalid { field: "parameters", reason: format!("{key:?} is unknown here; volumes have {KEYS}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::Bound;
    use crate::config::ByteSize;

    fn map<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
        pairs.map(|(key, value)| (key.into(), value.into())).into()
    }

    #[test]
    fn all_parameters_are_read() {
        let class = map([
            ("durability", "bounded:64MiB,30s"),
            ("onUnreachable", "30s"),
            ("queues", "2"),
            ("queueDepth", "64"),
            ("readIops", "1000"),
            ("weight", "200"),
            ("csi.storage.k8s.io/pvc/name", "data"),
        ]);
        let attributes = map([("readIops", "none"), ("writeBytesPerSecond", "100MiB"), ("burst", "1s")]);
        let (fixed, settings) = of_volume(&class, &attributes).unwrap();
        let max_bytes = 64 << 20;
        assert_eq!(
            fixed.durability,
            Durability::Bounded(Bound { max_bytes, max_age: std::time::Duration::from_secs(30) })
        );
        assert_eq!((fixed.queues, fixed.queue_depth), (Some(2), Some(64)));
        assert!(fixed.on_unreachable.is_some());
        assert_eq!(settings.weight, Some(200));
        // The class of attributes has the last word.
        assert_eq!(settings.limits.read_iops, Some(None));
        assert_eq!(settings.limits.write_bytes_per_second, Some(Some(ByteSize(100 << 20))));
        assert_eq!(settings.limits.burst_milliseconds, Some(1000));
    }

    #[test]
    fn a_mistyped_key_or_value_is_refused() {
        for (key, value) in [
            ("Durability", "store"),
            ("durability", "Store"),
            ("durabilty", "store"),
            ("queues", "-1"),
            ("readIops", "many"),
            ("writeBytesPerSecond", "1 GB"),
        ] {
            let error = of_volume(&map([(key, value)]), &map([])).unwrap_err();
            assert!(matches!(error, CsiError::Invalid { .. }), "{key}={value}: {error}");
        }
    }

    #[test]
    fn only_limits_and_weight_change_later() {
        assert!(of_change(&map([("durability", "store")])).is_err());
        assert!(of_volume(&map([]), &map([("queues", "2")])).is_err());
        assert!(of_change(&map([])).unwrap().is_empty());
        assert!(!of_change(&map([("weight", "7")])).unwrap().is_empty());
    }

    #[test]
    fn a_snapshot_has_no_parameters_of_its_own() {
        check_of_snapshot(&map([("csi.storage.k8s.io/volumesnapshot/name", "a")])).unwrap();
        assert!(check_of_snapshot(&map([("durability", "store")])).is_err());
    }
}
