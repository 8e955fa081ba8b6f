//! Figures add up, reads return the written blocks, and existing files stay unchanged without leave.

#![allow(clippy::cast_precision_loss, clippy::float_cmp, reason = "figures of tests are small and exact")]

mod figures;
mod plan;
mod running;
mod support;
