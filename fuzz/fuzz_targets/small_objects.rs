//! Fuzzes name records, snapshots, markers and keys; `glidefs::testing::store::format::fuzzing` owns the property.

#![no_main]

use glidefs::testing::store::format::fuzzing::check_records;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_records(bytes);
});
