//! The messages and services of the container storage interface, made from `proto/csi.proto` when the program is built.
//!
//! Owns nothing but the inclusion. Invariant: the file is the specification's own, version 1.13.0, without a change.

#![allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    reason = "the specification's comments are in proto/csi.proto"
)]

tonic::include_proto!("csi.v1");
