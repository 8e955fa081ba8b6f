//! Fuzzes footers of sealed segments; `glidefs::cache::format::fuzzing` owns the property.

#![no_main]

use glidefs::cache::format::fuzzing::check_footer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_footer(bytes);
});
