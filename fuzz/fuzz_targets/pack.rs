//! Fuzzes packs: header, index, trailer; `glidefs::testing::store::format::fuzzing` owns the property.

#![no_main]

use glidefs::testing::store::format::fuzzing::check_pack;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_pack(bytes);
});
