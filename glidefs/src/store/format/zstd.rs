//! Compression of index and manifest bodies and of blocks.
//!
//! Owns the contexts and the bounds. Invariant: decompression writes exactly as many bytes as the caller expects, or fails.

use std::cell::RefCell;

use ::zstd::bulk::Decompressor;

use super::error::FormatError;

/// Level for bodies of index and manifest, which are small and kept for long.
const BODY_LEVEL: i32 = 3;

const FAILED: FormatError = FormatError::Malformed("compressed bytes");

thread_local! {
    /// A context takes 100 KiB or more, so each thread keeps one for all blocks.
    static DECOMPRESSOR: RefCell<Decompressor<'static>> = RefCell::default();
}

/// Compresses the body of an index or a manifest.
pub(super) fn compress(body: &[u8]) -> Vec<u8> {
    // Fails only where memory cannot be had, and Rust's own allocations abort then as well.
    ::zstd::bulk::compress(body, BODY_LEVEL).unwrap_or_else(|error| panic!("zstd: {error}"))
}

/// Most bytes that [`compress`] makes of a body of `plain_bytes`.
pub(super) fn compressed_bytes_max(plain_bytes: usize) -> usize {
    ::zstd::zstd_safe::compress_bound(plain_bytes)
}

/// Decompresses `stored` to exactly `plain_bytes` bytes.
pub(super) fn decompress(stored: &[u8], plain_bytes: usize) -> Result<Vec<u8>, FormatError> {
    let mut plain = Vec::with_capacity(plain_bytes);
    let written = DECOMPRESSOR
        .with_borrow_mut(|decompressor| decompressor.decompress_to_buffer(stored, &mut plain))
        .map_err(|_| FAILED)?;
    // `Vec::with_capacity` may give more room than asked for.
    if written == plain_bytes && plain.len() == plain_bytes { Ok(plain) } else { Err(FAILED) }
}
