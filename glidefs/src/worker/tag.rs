//! The name of a tag among all tags of a worker.
//!
//! Owns the token of a tag's command: the token is the name, so an armed tag costs the worker no memory.

/// One tag of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagId {
    /// The queue index, which is also the place of the queue's character device in the ring's file table.
    pub queue_index: u32,
    /// Number of the tag in the queue.
    pub tag: u16,
}

impl TagId {
    /// The token of a command for the tag: `queue_index` << 16 | `tag`.
    pub fn encode(self) -> u64 {
        u64::from(self.queue_index) << 16 | u64::from(self.tag)
    }

    /// The tag of a command with this token.
    #[expect(clippy::cast_possible_truncation, reason = "`encode` gave each field this width")]
    pub fn decode(token: u64) -> Self {
        Self { queue_index: (token >> 16) as u32, tag: token as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_round_trip_through_their_tokens() {
        for (queue_index, tag) in [(u32::MAX, u16::MAX), (0, 0), (3, 7)] {
            let id = TagId { queue_index, tag };
            assert_eq!(TagId::decode(id.encode()), id);
            assert!(id.encode() < 1 << 63, "commands have tokens below 2^63");
        }
    }
}
