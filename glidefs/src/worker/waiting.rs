//! What a completion of the worker's ring is about.
//!
//! Owns the token of a device queue's command, so that a tag costs no memory while it is armed, and the context of the
//! worker's own operations. Does not own how either reaches the kernel.

/// One tag of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagId {
    /// The queue's place in the worker's table, and in the ring's file table.
    pub slot: u32,
    /// The tag.
    pub tag: u16,
}

impl TagId {
    /// As the token of a command: slot << 16 | tag.
    pub fn encode(self) -> u64 {
        u64::from(self.slot) << 16 | u64::from(self.tag)
    }

    /// From the token of a command.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field was put there by `encode` with that width"
    )]
    pub fn decode(token: u64) -> Self {
        Self { slot: (token >> 16) as u32, tag: token as u16 }
    }
}

/// What the worker waits for, other than commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The inbox's eventfd to be written.
    Inbox,
    /// An append the cache asked for, by its number.
    Append(u32),
    /// A sync the cache asked for, by its number.
    Sync(u32),
    /// A read the cache asked for, by its number.
    Read(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_round_trip_through_their_tokens() {
        for tag in
            [TagId { slot: u32::MAX, tag: u16::MAX }, TagId { slot: 0, tag: 0 }, TagId { slot: 3, tag: 7 }]
        {
            assert_eq!(TagId::decode(tag.encode()), tag);
            assert!(tag.encode() < 1 << 63, "commands have tokens below 2^63");
        }
    }
}
