//! Property of any bytes in the place of a region's header, checked by `fuzz/` and by a property test: the decoder refuses the
//! bytes, or the encoder makes exactly these bytes of the decoded header, and no block lies outside of the region.
//!
//! Random bytes never pass the checksum. So the checksum is also put right, as a forger could do. Does not exist in the daemon.

use super::region::{HEADER_BYTES, RegionHeader, sealed};

const REGION_BYTES: u32 = 1 << 20;

/// Checks `bytes` as a header, and again with magic, version and checksum put right. Returns whether the second was accepted.
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
