//! Sizes: which size a new volume gets, and whether an existing one fits.
//!
//! Owns the decisions. Does not own the rule for sizes of exports (`router`).

use super::error::CsiError;
use super::proto::CapacityRange;

/// The size of a volume for which nobody names one, bytes.
const DEFAULT_BYTES: u64 = 10 << 30;
/// Sizes are whole multiples of these bytes: a block of every file system.
const GRANULE_BYTES: u64 = 4096;

/// The sizes which a request allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeRange {
    /// The smallest size, or `None` where the driver may choose.
    required_bytes: Option<u64>,
    limit_bytes: Option<u64>,
}

impl SizeRange {
    /// Reads and checks the range of a request.
    pub fn of(range: Option<&CapacityRange>) -> Result<Self, CsiError> {
        let Some(range) = range else { return Ok(Self { required_bytes: None, limit_bytes: None }) };
        let bytes = |field, value: i64| {
            let reason = || CsiError::invalid(field, format!("{value} is negative"));
            // By the specification 0 stands for a bound which is not set.
            u64::try_from(value).map(|bytes| (bytes > 0).then_some(bytes)).map_err(|_| reason())
        };
        let sizes = Self {
            required_bytes: bytes("capacity_range.required_bytes", range.required_bytes)?,
            limit_bytes: bytes("capacity_range.limit_bytes", range.limit_bytes)?,
        };
        match (sizes.required_bytes, sizes.limit_bytes) {
            (Some(required), Some(limit)) if required > limit => Err(CsiError::out_of_range(format!(
                "{required} bytes are required, and {limit} bytes are the limit"
            ))),
            _ => Ok(sizes),
        }
    }

    /// The size of a new volume which needs `least_bytes` for its file system or its content.
    pub fn new_size(&self, least_bytes: u64) -> Result<u64, CsiError> {
        let limit = self.limit_bytes.unwrap_or(u64::MAX);
        let default = DEFAULT_BYTES.min(limit - limit % GRANULE_BYTES);
        let bytes = self.required_bytes.unwrap_or(default).max(least_bytes);
        let too_large = || {
            CsiError::out_of_range(format!(
                "the volume would have {bytes} bytes, rounded up to a multiple of {GRANULE_BYTES}: the limit is lower"
            ))
        };
        let rounded = bytes.checked_next_multiple_of(GRANULE_BYTES).ok_or_else(too_large)?;
        if self.fits(rounded) { Ok(rounded) } else { Err(too_large()) }
    }

    /// Whether a volume of `bytes` is what the request asks for.
    pub fn fits(&self, bytes: u64) -> bool {
        self.is_enough(bytes) && self.allows(bytes)
    }

    /// Whether a volume of `bytes` has the required size.
    pub fn is_enough(&self, bytes: u64) -> bool {
        self.required_bytes.is_none_or(|required| bytes >= required)
    }

    /// Whether a volume of `bytes` is not above the limit.
    pub fn allows(&self, bytes: u64) -> bool {
        self.limit_bytes.is_none_or(|limit| bytes <= limit)
    }
}

/// A number of bytes as the interface has it.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> Result<SizeRange, CsiError> {
        SizeRange::of(Some(&CapacityRange { required_bytes, limit_bytes }))
    }

    #[test]
    fn the_size_is_the_required_one_in_whole_blocks() {
        assert_eq!(range(1 << 30, 0).unwrap().new_size(0).unwrap(), 1 << 30);
        assert_eq!(range(1, 0).unwrap().new_size(0).unwrap(), 4096);
        assert_eq!(range(4097, 8192).unwrap().new_size(0).unwrap(), 8192);
    }

    #[test]
    fn without_a_size_the_volume_has_the_default_one_or_the_limit() {
        assert_eq!(SizeRange::of(None).unwrap().new_size(0).unwrap(), 10 << 30);
        assert_eq!(range(0, 1 << 30).unwrap().new_size(0).unwrap(), 1 << 30);
        assert_eq!(range(0, 5000).unwrap().new_size(0).unwrap(), 4096);
        assert_eq!(SizeRange::of(None).unwrap().new_size(20 << 30).unwrap(), 20 << 30);
    }

    #[test]
    fn a_size_below_the_least_is_raised_if_the_limit_allows() {
        assert_eq!(range(1 << 20, 0).unwrap().new_size(300 << 20).unwrap(), 300 << 20);
        let error = range(1 << 20, 2 << 20).unwrap().new_size(300 << 20).unwrap_err();
        assert!(matches!(error, CsiError::Refused { code: tonic::Code::OutOfRange, .. }));
    }

    #[test]
    fn impossible_ranges_are_refused() {
        assert!(matches!(range(2, 1), Err(CsiError::Refused { code: tonic::Code::OutOfRange, .. })));
        assert!(matches!(range(-1, 0), Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })));
        assert!(matches!(range(0, -1), Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })));
        // Rounding up would pass the limit.
        assert!(matches!(
            range(5000, 5000).unwrap().new_size(0),
            Err(CsiError::Refused { code: tonic::Code::OutOfRange, .. })
        ));
        assert!(matches!(
            range(i64::MAX, 0).unwrap().new_size(u64::MAX),
            Err(CsiError::Refused { code: tonic::Code::OutOfRange, .. })
        ));
    }

    #[test]
    fn an_existing_volume_fits_between_the_bounds() {
        let range = range(10, 20).unwrap();
        assert_eq!([9, 10, 20, 21].map(|bytes| range.fits(bytes)), [false, true, true, false]);
        assert!(SizeRange::of(None).unwrap().fits(1));
    }
}
