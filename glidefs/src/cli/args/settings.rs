//! The options for properties of an export.

use std::str::FromStr;

use clap::Args;

use crate::api::wire::{Durability, LimitsChange, SetRequest};
use crate::config::{ByteSize, TimeSpan};
use crate::properties::OnUnreachable;
use crate::properties::limits::Settings;
use crate::units::millis;

/// Properties of an export.
#[derive(Clone, Copy, Debug, Args)]
pub(in crate::cli) struct PropertyArgs {
    /// The loss an acknowledged FLUSH survives: of power (local), or of the host (store); or how much may be lost with the host
    /// [default: local for a new export, else as the volume has it]
    #[arg(long, value_name = "local|store|bounded:SIZE,TIME")]
    durability: Option<Durability>,
    /// How a read ends that needs an unreachable store: wait, or fail after this time [default: wait for a new export, else as
    /// the volume has it]
    #[arg(long, value_name = "wait|TIME")]
    on_unreachable: Option<OnUnreachable>,
    /// Most reads in a second
    #[arg(long, help_heading = "Limits", value_name = "NUMBER|none")]
    read_iops: Option<Rate<u64>>,
    /// Most writes in a second
    #[arg(long, help_heading = "Limits", value_name = "NUMBER|none")]
    write_iops: Option<Rate<u64>>,
    /// Most bytes read a second, such as 100MiB
    #[arg(long, help_heading = "Limits", value_name = "SIZE|none")]
    read_bps: Option<Rate<ByteSize>>,
    /// Most bytes written a second, such as 100MiB
    #[arg(long, help_heading = "Limits", value_name = "SIZE|none")]
    write_bps: Option<Rate<ByteSize>>,
    /// How much time's worth of each limit an idle export saves up, to use at once
    #[arg(long, help_heading = "Limits", value_name = "TIME")]
    burst: Option<TimeSpan>,
    /// Part of the export where exports share: twice the weight gets twice as much
    #[arg(long, help_heading = "Limits", value_parser = clap::value_parser!(u16).range(1..=i64::from(Settings::WEIGHT_MAX)))]
    weight: Option<u16>,
}

impl PropertyArgs {
    /// The change for a request.
    pub fn request(&self) -> SetRequest {
        let Self { durability, on_unreachable, .. } = *self;
        let limits = LimitsChange {
            read_iops: self.read_iops.map(|rate| rate.0),
            write_iops: self.write_iops.map(|rate| rate.0),
            read_bytes_per_second: self.read_bps.map(|rate| rate.0),
            write_bytes_per_second: self.write_bps.map(|rate| rate.0),
            burst_milliseconds: self.burst.map(|span| millis(span.0)),
        };
        SetRequest { durability, on_unreachable, limits, weight: self.weight.map(Into::into) }
    }
}

/// The value of a limit; `None` for the word "none", which ends the limit.
#[derive(Clone, Copy, Debug)]
struct Rate<T>(Option<T>);

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Rate<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        text.parse()
            .map(|rate| Self(Some(rate)))
            .map_err(|error: T::Err| format!("{error}; or none, without a limit"))
    }
}
