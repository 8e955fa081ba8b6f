//! What must hold for any bytes at all where a region's header is looked for; checked by `fuzz/` and by a property test.
//!
//! Random bytes never get past the checksum, so it is also put right, as a forger could. Does not exist in the daemon. The
//! property: bytes are refused, or are exactly what the encoder makes of what was decoded, and no block lies outside.

use super::region::{HEADER_BYTES, RegionHeader, sealed};

const REGION_BYTES: u32 = 1 << 20;

/// `bytes` as a header, and with magic, version and checksum put right. Whether that was accepted.
pub fn check_region(bytes: &[u8]) -> bool {
    let _ = RegionHeader::decode(bytes, REGION_BYTES);
    let forged = sealed(bytes);
    let Some(header) = RegionHeader::decode(&forged, REGION_BYTES) else { return false };
    assert_eq!(header.encode(), forged);
    for entry in &header.entries {
        assert!(entry.at >= HEADER_BYTES && entry.len > 0);
        assert!(u64::from(entry.at) + u64::from(entry.len) <= u64::from(REGION_BYTES));
    }
    true
}
