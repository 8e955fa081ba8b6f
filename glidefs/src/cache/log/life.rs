//! The life cycle of a segment, as a state machine: where a segment is, and what moves the segment on.
//!
//! Does not own the segments (`table`) or when a segment moves on (`keeper`, `recovery`). Invariant: only a free segment is prepared,
//! and only a segment that nobody appends to becomes free.

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::cache) enum State {
    /// Holds nothing that anybody needs.
    Free,
    /// Appended to, or ready to be appended to.
    Open,
    /// No longer appended to; the footer is not on disk.
    Closed,
    /// Stable, with footer and trailer unless the disk refused footer or trailer, or the segment stands for entries of doubt.
    Sealed,
    /// Holds nothing that anybody needs: nothing is written to the file before the next start.
    Quarantined,
}

impl State {
    /// Whether a segment may enter `next` from this state.
    pub fn leads_to(self, next: Self) -> bool {
        match next {
            // A fresh header was written.
            Self::Open => self == Self::Free,
            // The owner that appended let go of the segment.
            Self::Closed => self == Self::Open,
            // The contents are stable.
            Self::Sealed => self == Self::Closed,
            // Nobody needs the contents.
            Self::Free => matches!(self, Self::Closed | Self::Sealed),
            // Nobody needs the contents, and the file cannot be relied on.
            Self::Quarantined => matches!(self, Self::Free | Self::Closed | Self::Sealed),
        }
    }

    pub(super) fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Open,
            2 => Self::Closed,
            3 => Self::Sealed,
            4 => Self::Quarantined,
            _ => Self::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_goes_round_its_life_and_nowhere_else() {
        use State::{Closed, Free, Open, Quarantined, Sealed};
        let allowed = [
            (Free, Open),
            (Open, Closed),
            (Closed, Sealed),
            (Closed, Free),
            (Sealed, Free),
            (Free, Quarantined),
            (Closed, Quarantined),
            (Sealed, Quarantined),
        ];
        for state in [Free, Open, Closed, Sealed, Quarantined] {
            assert_eq!(State::of(state as u8), state);
            for next in [Free, Open, Closed, Sealed, Quarantined] {
                assert_eq!(state.leads_to(next), allowed.contains(&(state, next)), "{state:?} to {next:?}");
            }
        }
    }
}
