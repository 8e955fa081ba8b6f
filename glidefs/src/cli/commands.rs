//! The commands, apart from `bench` and the copying of images.

pub(super) mod bulk;
pub(super) mod csi;
pub(super) mod daemon;
pub(super) mod doctor;
pub(super) mod exports;
pub(super) mod files;
pub(super) mod snapshots;
pub(super) mod upgrade;
