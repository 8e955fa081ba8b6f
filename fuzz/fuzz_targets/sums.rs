//! Fuzzes pages of the sums of sealed segments; `glidefs::testing::cache::format::fuzzing` owns the property.

#![no_main]

use glidefs::testing::cache::format::fuzzing::check_sums_page;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_sums_page(bytes);
});
