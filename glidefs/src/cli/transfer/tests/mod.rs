//! Imports and dumps of ordinary files, and the engine beneath them.
