//! Imports and dumps of ordinary files, and the copying engine.

mod commands;
mod engine;
mod failures;
mod support;
