//! The life cycle of a segment, as a state machine: where a segment is, and what moves the segment on.
//!
//! Does not own the segments (`table`) or when an event happens (`keeper`, `recovery`). Invariant: only a free segment is prepared,
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

/// An event that moves a segment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Event {
    /// A fresh header was written.
    Prepare,
    /// The owner that appended let go of the segment.
    Close,
    /// The segment's contents are stable.
    Seal,
    /// Nobody needs the segment's contents.
    Release,
    /// Nobody needs the segment's contents, and the segment's file cannot be relied on.
    Quarantine,
}

impl State {
    /// The state after `event`; `None` when `event` must not happen in this state.
    pub fn on(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Free, Event::Prepare) => Some(Self::Open),
            (Self::Open, Event::Close) => Some(Self::Closed),
            (Self::Closed, Event::Seal) => Some(Self::Sealed),
            (Self::Closed | Self::Sealed, Event::Release) => Some(Self::Free),
            (Self::Free | Self::Closed | Self::Sealed, Event::Quarantine) => Some(Self::Quarantined),
            _ => None,
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
        use Event::{Close, Prepare, Quarantine, Release, Seal};
        use State::{Closed, Free, Open, Quarantined, Sealed};
        let allowed = [
            (Free, Prepare, Open),
            (Open, Close, Closed),
            (Closed, Seal, Sealed),
            (Closed, Release, Free),
            (Sealed, Release, Free),
            (Free, Quarantine, Quarantined),
            (Closed, Quarantine, Quarantined),
            (Sealed, Quarantine, Quarantined),
        ];
        for state in [Free, Open, Closed, Sealed, Quarantined] {
            assert_eq!(State::of(state as u8), state);
            for event in [Prepare, Close, Seal, Release, Quarantine] {
                let next = allowed.iter().find(|case| (case.0, case.1) == (state, event)).map(|case| case.2);
                assert_eq!(state.on(event), next, "{event:?} in {state:?}");
            }
        }
    }
}
