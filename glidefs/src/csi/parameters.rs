//! Parameters of a StorageClass, and of a VolumeAttributesClass.
//!
//! Owns the keys and their text. Does not own the bounds of values (`router`). Invariant: an unknown key is refused, so that a
//! mistyped promise about durability is not a promise which nobody keeps.

use std::collections::HashMap;
use std::str::FromStr;

use super::error::CsiError;
use crate::api::wire::{Choices, SetRequest};
use crate::config::TimeSpan;
use crate::units::millis;

/// Keys with this beginning come from the sidecars, and say whose volume or snapshot it is.
const SIDECARS: &str = "csi.storage.k8s.io/";

/// Reads the parameters of a new volume: those of the StorageClass, then those of the VolumeAttributesClass, which win.
pub(super) fn of_volume(
    parameters: &HashMap<String, String>,
    mutable: &HashMap<String, String>,
) -> Result<Choices, CsiError> {
    let mut choices = Choices::default();
    for (key, value) in parameters {
        match key.as_str() {
            "queues" => choices.queues = Some(parse(key, value)?),
            "queueDepth" => choices.queue_depth = Some(parse(key, value)?),
            _ if key.starts_with(SIDECARS) => {}
            _ => set(&mut choices.properties, key, value)?,
        }
    }
    mutable.iter().try_for_each(|(key, value)| set(&mut choices.properties, key, value))?;
    Ok(choices)
}

/// Reads the parameters of a VolumeAttributesClass: those which can be changed while a volume is in use.
pub(super) fn of_change(mutable: &HashMap<String, String>) -> Result<SetRequest, CsiError> {
    let mut settings = SetRequest::default();
    mutable.iter().try_for_each(|(key, value)| set(&mut settings, key, value))?;
    Ok(settings)
}

/// Checks the parameters of a VolumeSnapshotClass: there are none beside those of the sidecars.
pub(super) fn check_of_snapshot(parameters: &HashMap<String, String>) -> Result<(), CsiError> {
    match parameters.keys().find(|key| !key.starts_with(SIDECARS)) {
        Some(key) => Err(unknown(key)),
        None => Ok(()),
    }
}

/// Takes over a parameter which can be changed.
fn set(settings: &mut SetRequest, key: &str, value: &str) -> Result<(), CsiError> {
    let limits = &mut settings.limits;
    match key {
        "durability" => settings.durability = Some(parse(key, value)?),
        "onUnreachable" => settings.on_unreachable = Some(parse(key, value)?),
        "readIops" => limits.read_iops = Some(rate(key, value)?),
        "writeIops" => limits.write_iops = Some(rate(key, value)?),
        "readBytesPerSecond" => limits.read_bytes_per_second = Some(rate(key, value)?),
        "writeBytesPerSecond" => limits.write_bytes_per_second = Some(rate(key, value)?),
        "burst" => {
            let span: TimeSpan = parse(key, value)?;
            limits.burst_milliseconds = Some(millis(span.0));
        }
        "weight" => settings.weight = Some(parse(key, value)?),
        _ => return Err(unknown(key)),
    }
    Ok(())
}

/// A limit, or `None` for the word which ends the limit.
fn rate<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<Option<T>, CsiError> {
    if value == "none" { Ok(None) } else { parse(key, value).map(Some) }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T, CsiError> {
    value.parse().map_err(|error| CsiError::invalid("parameters", format!("{key} is {value:?}: {error}")))
}

fn unknown(key: &str) -> CsiError {
    const KEYS: &str = "queues, queueDepth, and for a VolumeAttributesClass as well durability, onUnreachable, readIops, writeIops, \
                        readBytesPerSecond, writeBytesPerSecond, burst and weight";
    CsiError::invalid("parameters", format!("{key:?} is unknown here; volumes have {KEYS}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Bound, Durability};
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
        let choices = of_volume(&class, &attributes).unwrap();
        let max_bytes = 64 << 20;
        assert_eq!(
            choices.properties.durability,
            Some(Durability::Bounded(Bound { max_bytes, max_age: std::time::Duration::from_secs(30) }))
        );
        assert_eq!((choices.queues, choices.queue_depth), (Some(2), Some(64)));
        let SetRequest { on_unreachable, limits, weight, .. } = choices.properties;
        assert!(on_unreachable.is_some());
        assert_eq!(weight, Some(200));
        // The class of attributes has the last word.
        assert_eq!(limits.read_iops, Some(None));
        assert_eq!(limits.write_bytes_per_second, Some(Some(ByteSize(100 << 20))));
        assert_eq!(limits.burst_milliseconds, Some(1000));
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
            assert!(
                matches!(error, CsiError::Refused { code: tonic::Code::InvalidArgument, .. }),
                "{key}={value}: {error}"
            );
        }
    }

    #[test]
    fn properties_change_later_and_the_device_does_not() {
        assert!(of_change(&map([("queues", "2")])).is_err());
        assert!(of_volume(&map([]), &map([("queues", "2")])).is_err());
        assert_eq!(of_change(&map([])).unwrap(), SetRequest::default());
        let change = of_change(&map([("weight", "7"), ("durability", "store")])).unwrap();
        assert_eq!((change.weight, change.durability), (Some(7), Some(Durability::Store)));
    }

    #[test]
    fn a_class_without_a_durability_leaves_a_copy_the_one_of_its_source() {
        assert_eq!(of_volume(&map([("queues", "2")]), &map([])).unwrap().properties, SetRequest::default());
    }

    #[test]
    fn a_snapshot_has_no_parameters_of_its_own() {
        check_of_snapshot(&map([("csi.storage.k8s.io/volumesnapshot/name", "a")])).unwrap();
        assert!(check_of_snapshot(&map([("durability", "store")])).is_err());
    }
}
