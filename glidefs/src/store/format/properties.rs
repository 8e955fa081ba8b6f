//! The section of a manifest with the properties of the volume.
//!
//! Owns the encoding. Does not own the values, nor the bounds of values (`crate::properties`). Invariants: properties have one
//! encoding, which leaves out whatever is usual; a property of an unknown kind was written by a newer glidefs, and is refused: without
//! the property the volume would be served with less than was promised.
//!
//! ```text
//! property: kind u8 │ number u64        kinds ascend, each at most once
//! ```

use std::time::Duration;

use super::cursor::Cursor;
use super::error::FormatError;
use crate::properties::limits::{Limit, Limits, Settings};
use crate::properties::{Bound, Durability, OnUnreachable, Properties};
use crate::units::millis;

/// Number of kinds; the first is 1.
const KINDS: usize = 10;
const DURABILITY: u8 = 1;
const STORE: u64 = 1;
const BOUNDED: u64 = 2;

/// The number of each kind in turn; `None` where usual.
fn numbers(properties: &Properties) -> [Option<u64>; KINDS] {
    let Properties { durability, on_unreachable, settings: Settings { limits, weight } } = properties;
    let (durability, bound) = match durability {
        Durability::Local => (None, None),
        Durability::Store => (Some(STORE), None),
        Durability::Bounded(bound) => (Some(BOUNDED), Some(bound)),
    };
    let fail_after = match on_unreachable {
        OnUnreachable::Wait => None,
        OnUnreachable::FailAfter(limit) => Some(millis(*limit)),
    };
    let [read_iops, write_iops, read_bytes, write_bytes] = Limit::ALL.map(|limit| limits.rate(limit));
    [
        durability,
        bound.map(|bound| bound.max_bytes),
        bound.map(|bound| millis(bound.max_age)),
        fail_after,
        read_iops,
        write_iops,
        read_bytes,
        write_bytes,
        (limits.burst != Limits::BURST_DEFAULT).then(|| millis(limits.burst)),
        (*weight != Settings::WEIGHT_DEFAULT).then(|| (*weight).into()),
    ]
}

/// The bytes of the section; none where everything is usual.
pub(super) fn encode(properties: &Properties) -> Vec<u8> {
    let kinds = (1_u8..).zip(numbers(properties));
    let given = kinds.filter_map(|(kind, number)| Some((kind, number?)));
    given.flat_map(|(kind, number)| [&[kind][..], &number.to_le_bytes()].concat()).collect()
}

pub(super) fn decode(section: &mut Cursor<'_>) -> Result<Properties, FormatError> {
    const WRONG: FormatError = FormatError::Malformed("properties of a volume");
    let (mut given, mut before) = ([None; KINDS], 0);
    while section.left() > 0 {
        let (kind, number) = (section.u8()?, section.u64()?);
        if kind <= before {
            return Err(WRONG);
        }
        before = kind;
        let place = usize::from(kind).checked_sub(1).and_then(|place| given.get_mut(place));
        *place.ok_or(FormatError::Property { kind })? = Some(number);
    }
    let [durability, max_bytes, max_age, fail_after, rates @ .., burst, weight] = given;
    let span = |millis: Option<u64>| millis.map(Duration::from_millis);
    let durability = match durability {
        None => Durability::Local,
        Some(STORE) => Durability::Store,
        Some(BOUNDED) => {
            let (max_bytes, max_age) = (max_bytes.ok_or(WRONG)?, span(max_age).ok_or(WRONG)?);
            Durability::Bounded(Bound { max_bytes, max_age })
        }
        Some(_) => return Err(FormatError::Property { kind: DURABILITY }),
    };
    let mut limits = Limits::unlimited(span(burst).unwrap_or(Limits::BURST_DEFAULT));
    Limit::ALL.into_iter().zip(rates).for_each(|(limit, rate)| limits.set_rate(limit, rate));
    let weight = weight.map_or(Ok(Settings::WEIGHT_DEFAULT), u16::try_from).map_err(|_| WRONG)?;
    let on_unreachable = span(fail_after).map_or(OnUnreachable::Wait, OnUnreachable::FailAfter);
    let properties = Properties { durability, on_unreachable, settings: Settings { limits, weight } };
    let is_unusual = properties != Properties::default();
    if is_unusual && properties.are_allowed() && numbers(&properties) == given {
        Ok(properties)
    } else {
        Err(WRONG)
    }
}
