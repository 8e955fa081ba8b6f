//! Fuzzes the first and the last frame of a segment; `glidefs::testing::cache::format::fuzzing` owns the property.

#![no_main]

use glidefs::testing::cache::format::fuzzing::check_segment_header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_segment_header(bytes);
});
