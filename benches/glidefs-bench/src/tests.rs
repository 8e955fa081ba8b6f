//! Figures add up, reads return the written blocks, and existing files stay unchanged without leave.

mod figures;
mod plan;
mod running;
mod support;
