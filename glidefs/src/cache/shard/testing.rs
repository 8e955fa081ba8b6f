//! Whether a shard has come to rest, for tests and benches.
//!
//! Owns nothing. A worker asks for what there is to do.

use super::Shard;
use super::request::Token;

impl<T: Token> Shard<T> {
    /// Whether no request is inside: none in the batch, none waiting, none to collect.
    pub fn idle(&self) -> bool {
        let is_idle = self.done.is_empty()
            && self.wanted.is_empty()
            && self.log.is_idle()
            && self.syncs.is_idle()
            && self.reads.is_idle();
        #[cfg(debug_assertions)]
        assert!(!is_idle || self.inside == 0, "{} tokens were lost", self.inside);
        is_idle
    }
}
