//! Fuzzes headers of the block cache's regions; `glidefs::testing::store::block_cache_fuzzing` owns the property.

#![no_main]

use glidefs::testing::store::block_cache_fuzzing::check_region;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_region(bytes);
});
