//! Fuzzes pages of a checkpoint; `glidefs::testing::cache::format::fuzzing` owns the property.

#![no_main]

use glidefs::testing::cache::format::fuzzing::check_checkpoint_page;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_checkpoint_page(bytes);
});
