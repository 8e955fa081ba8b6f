//! Fuzzes record headers; `glidefs::testing::cache::format::fuzzing` owns the property.

#![no_main]

use glidefs::testing::cache::format::fuzzing::check_record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_record(bytes);
});
