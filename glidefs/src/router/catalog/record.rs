//! One export in the catalog.
//!
//! Owns the fields of a record. Does not own the bytes around the JSON (`encoding`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::encoding::{DecodeError, decode_json, encode_json};
use crate::properties::limits::{Limit, Limits, Settings};
use crate::properties::{Bound, Durability, OnUnreachable, Properties};
use crate::router::devices::{DeviceId, DeviceOptions};
use crate::units::{ExportId, millis};

/// The wish of the user for an export. Written before anything is done about the wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::router) enum Desired {
    /// The export has a device.
    Attached,
    /// The export has data and no device.
    Detached,
    /// Device and data are gone.
    Deleted,
}

/// The device that an export has, had or is about to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::router) struct DeviceRecord {
    /// N of `/dev/ublkbN`; requested again whenever the export is attached.
    pub number: u32,
    /// The boot of the kernel in which the device may exist; `None` when there is certainly no device.
    pub boot_id: Option<String>,
    /// The last size the kernel was told, bytes.
    pub size_bytes: u64,
}

/// One export in the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::router) struct ExportRecord {
    pub id: u32,
    /// Valid by the rule of `name`.
    pub name: String,
    /// Valid by the rule of `size`.
    pub size_bytes: u64,
    pub queues: u16,
    /// Most requests in flight per queue.
    pub queue_depth: u16,
    /// The wish of the user.
    pub desired: Desired,
    pub device: DeviceRecord,
    /// When the export was created, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
    /// Whether FLUSH waits for the store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flush_waits_for_store: bool,
    /// Bound on the data that may be lost with the host; `None` without a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundRecord>,
    /// Time after which a READ fails for want of the store, milliseconds. `None`: the READ waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads_fail_after_millis: Option<u64>,
    /// Most operations and bytes a second; `None` without a limit and with the default burst. A glidefs from before limits
    /// were recorded refuses a record with limits as one of a newer version, and so serves no export without its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<LimitsRecord>>,
    /// The export's part where exports share; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The snapshot of a rollback that has begun. The export gets no device before the rollback is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolls_back_to: Option<String>,
    /// Whether the export may have been released in the store, so that another host may have opened the export.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_be_released: bool,
}

/// Most data, and the oldest data, that an export may have at risk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::router) struct BoundRecord {
    pub max_bytes: u64,
    /// Time since the oldest data at risk was acknowledged, milliseconds.
    pub max_age_millis: u64,
}

/// The limits of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::router) struct LimitsRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_second: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_second: Option<u64>,
    pub burst_millis: u64,
}

impl LimitsRecord {
    fn of(limits: &Limits) -> Self {
        Self {
            read_iops: limits.rate(Limit::ReadIops),
            write_iops: limits.rate(Limit::WriteIops),
            read_bytes_per_second: limits.rate(Limit::ReadBytes),
            write_bytes_per_second: limits.rate(Limit::WriteBytes),
            burst_millis: millis(limits.burst),
        }
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::unlimited(Duration::from_millis(self.burst_millis));
        limits.set_rate(Limit::ReadIops, self.read_iops);
        limits.set_rate(Limit::WriteIops, self.write_iops);
        limits.set_rate(Limit::ReadBytes, self.read_bytes_per_second);
        limits.set_rate(Limit::WriteBytes, self.write_bytes_per_second);
        limits
    }
}

impl ExportRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        encode_json(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_json(bytes)
    }

    pub fn export_id(&self) -> ExportId {
        ExportId(self.id)
    }

    /// What the export promises.
    pub fn properties(&self) -> Properties {
        let durability = match self.bound {
            _ if self.flush_waits_for_store => Durability::Store,
            None => Durability::Local,
            Some(BoundRecord { max_bytes, max_age_millis }) => {
                Durability::Bounded(Bound { max_bytes, max_age: Duration::from_millis(max_age_millis) })
            }
        };
        let limit = self.reads_fail_after_millis.map(Duration::from_millis);
        let limits = self.limits.as_ref().map_or_else(Limits::default, |limits| limits.limits());
        Properties {
            durability,
            on_unreachable: limit.map_or(OnUnreachable::Wait, OnUnreachable::FailAfter),
            settings: Settings { limits, weight: self.weight.unwrap_or(Settings::WEIGHT_DEFAULT) },
        }
    }

    pub fn set_properties(&mut self, properties: &Properties) {
        let bound = |Bound { max_bytes, max_age }| BoundRecord { max_bytes, max_age_millis: millis(max_age) };
        (self.flush_waits_for_store, self.bound) = match properties.durability {
            Durability::Local => (false, None),
            Durability::Store => (true, None),
            Durability::Bounded(of) => (false, Some(bound(of))),
        };
        self.reads_fail_after_millis = match properties.on_unreachable {
            OnUnreachable::Wait => None,
            OnUnreachable::FailAfter(limit) => Some(millis(limit)),
        };
        let Settings { limits, weight } = properties.settings;
        self.limits = (limits != Limits::default()).then(|| Box::new(LimitsRecord::of(&limits)));
        self.weight = (weight != Settings::WEIGHT_DEFAULT).then_some(weight);
    }

    pub fn device_id(&self) -> DeviceId {
        DeviceId(self.device.number)
    }

    pub fn device_options(&self) -> DeviceOptions {
        DeviceOptions { queues: self.queues, queue_depth: self.queue_depth }
    }
}

#[cfg(test)]
pub(in crate::router) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::router) fn record(id: u32, name: &str) -> ExportRecord {
        ExportRecord {
            id,
            name: name.into(),
            size_bytes: 1 << 30,
            queues: 1,
            queue_depth: 64,
            desired: Desired::Attached,
            device: DeviceRecord { number: id, boot_id: Some("boot".into()), size_bytes: 1 << 30 },
            flush_waits_for_store: false,
            bound: None,
            reads_fail_after_millis: None,
            limits: None,
            weight: None,
            rolls_back_to: None,
            may_be_released: false,
            created_unix_millis: 1_700_000_000_000,
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let written = record(7, "vm-7");
        assert_eq!(ExportRecord::decode(&written.encode().unwrap()).unwrap(), written);
    }

    #[test]
    fn settings_are_kept_and_a_record_without_any_is_as_before_settings_were_known() {
        let old = record(7, "vm-7");
        assert_eq!(old.properties(), Properties::default());
        let text = |record: &ExportRecord| String::from_utf8_lossy(&record.encode().unwrap()).into_owned();
        let mut new = old.clone();
        new.set_properties(&Properties::default());
        assert_eq!(new, old);
        assert!(
            !text(&new).contains("limits") && !text(&new).contains("weight"),
            "older versions read the record"
        );
        let mut settings = Settings { weight: 7, ..Settings::default() };
        for (limit, rate) in Limit::ALL.into_iter().zip(1 << 20..) {
            settings.limits.set_rate(limit, Some(rate));
            settings.limits.burst = Duration::from_secs(rate - (1 << 20));
            new.set_properties(&Properties { settings, ..Properties::default() });
            assert_eq!(ExportRecord::decode(&new.encode().unwrap()).unwrap().properties().settings, settings);
        }
    }

    #[test]
    fn a_record_with_settings_of_a_newer_version_is_refused_as_such() {
        #[derive(Serialize)]
        struct Newer {
            #[serde(flatten)]
            record: ExportRecord,
            later: u8,
        }
        let newer = encode_json(&Newer { record: record(7, "vm-7"), later: 1 }).unwrap();
        assert!(ExportRecord::decode(&newer).unwrap_err().is_newer());
    }

    #[test]
    fn a_version_of_the_future_is_named() {
        let mut bytes = record(7, "vm-7").encode().unwrap();
        bytes[0] = 2;
        assert_eq!(
            ExportRecord::decode(&bytes).unwrap_err().to_string(),
            "it has format version 2, this glidefs reads version 1"
        );
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_always_noticed(at in any::<prop::sample::Index>(), flip in 1_u8..) {
            let mut bytes = record(7, "vm-7").encode().unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(ExportRecord::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(ExportRecord::decode(&bytes).is_err());
        }
    }
}
