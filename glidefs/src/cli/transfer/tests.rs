//! Imports and dumps of ordinary files, and the engine beneath them.

mod commands;
mod engine;
mod failures;
mod support;
