//! Fuzzes headers of the clean cache's regions; `glidefs::store::clean_fuzzing` owns the property.

#![no_main]

use glidefs::store::clean_fuzzing::check_region;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_region(bytes);
});
