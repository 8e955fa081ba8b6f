//! The life cycle of an export: its states and the one function that moves between them.
//!
//! ```text
//!  Recovering ─wait─▶ Waiting, which goes on as Detached does
//!  Creating ─no device─▶ Detached
//!  Creating ──ready──▶ Serving ──begin detach──▶ Detaching ──gone──▶ Detached ──begin attach──▶ Attaching ──ready──▶ Serving
//!  Recovering ─ready─▶ Serving         Serving, and every state with work under way ──fail──▶ Failed
//!  Serving, Detached, Failed ──begin delete──▶ Deleting        Failed ──begin attach or detach──▶ as from the others
//! ```
//!
//! Does not own the work done in a state (`operations`, `removal`, `recovery`) nor the record on disk (`catalog`). Invariant: a
//! state changes only through [`State::after`], under the export's operation lock.

use std::fmt;

/// The state of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first device is being made.
    Creating,
    /// The daemon has started, and the export gets its device back.
    Recovering,
    /// The daemon has started, and the store has not yet confirmed that this host still has the export: the device waits.
    Waiting,
    /// A device is being made for an export without one.
    Attaching,
    Serving,
    /// The device is being removed; the data stays.
    Detaching,
    /// The export has data and no device.
    Detached,
    /// The last operation failed; attach, detach or delete may be tried again.
    Failed {
        reason: String,
    },
    /// Device and data are being removed.
    Deleting,
}

/// An event that moves an export from one state to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The store cannot be asked whose the export is.
    Wait,
    /// A device is about to be made.
    BeginAttach,
    /// The device is about to be removed.
    BeginDetach,
    /// Device and data are about to be removed.
    BeginDelete,
    DeviceReady,
    DeviceGone,
    /// A new export gets no device yet.
    NoDevice,
    Fail {
        reason: String,
    },
}

/// An event that a state does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an export that is {state} cannot take the event {event:?}")]
pub struct ForbiddenTransition {
    state: State,
    event: Event,
}

impl State {
    pub fn after(&self, event: Event) -> Result<Self, ForbiddenTransition> {
        use State::{
            Attaching, Creating, Deleting, Detached, Detaching, Failed, Recovering, Serving, Waiting,
        };
        match (self, event) {
            (Recovering, Event::Wait) => Ok(Waiting),
            (Waiting | Detached | Failed { .. }, Event::BeginAttach) => Ok(Attaching),
            (Serving | Waiting | Failed { .. }, Event::BeginDetach) => Ok(Detaching),
            (Serving | Waiting | Detached | Failed { .. }, Event::BeginDelete) => Ok(Deleting),
            (Creating | Recovering | Attaching, Event::DeviceReady) => Ok(Serving),
            (Detaching, Event::DeviceGone) | (Creating, Event::NoDevice) => Ok(Detached),
            (Creating | Recovering | Attaching | Serving | Detaching | Deleting, Event::Fail { reason }) => {
                Ok(Failed { reason })
            }
            (state, event) => Err(ForbiddenTransition { state: state.clone(), event }),
        }
    }

    /// The state's name in the API, the CLI and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Recovering => "recovering",
            Self::Waiting => "waiting",
            Self::Attaching => "attaching",
            Self::Serving => "serving",
            Self::Detaching => "detaching",
            Self::Detached => "detached",
            Self::Failed { .. } => Self::FAILED,
            Self::Deleting => "deleting",
        }
    }

    /// The name of [`Self::Failed`].
    pub const FAILED: &'static str = "failed";

    /// Names of all states, in the order of a life.
    pub const NAMES: [&'static str; 9] = [
        "creating",
        "recovering",
        "waiting",
        "attaching",
        "serving",
        "detaching",
        "detached",
        Self::FAILED,
        "deleting",
    ];

    /// Whether a block device stands for the export.
    pub const fn has_device(&self) -> bool {
        matches!(self, Self::Serving | Self::Detaching)
    }

    /// Why the last operation failed; `None` in the other states.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Failed { reason } => Some(reason),
            _ => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn states() -> [State; 9] {
        [
            State::Creating,
            State::Recovering,
            State::Waiting,
            State::Attaching,
            State::Serving,
            State::Detaching,
            State::Detached,
            State::Failed { reason: "r".into() },
            State::Deleting,
        ]
    }

    fn events() -> [Event; 8] {
        [
            Event::Wait,
            Event::BeginAttach,
            Event::BeginDetach,
            Event::BeginDelete,
            Event::DeviceReady,
            Event::DeviceGone,
            Event::NoDevice,
            Event::Fail { reason: "s".into() },
        ]
    }

    #[test]
    fn every_pair_of_state_and_event_leads_where_the_table_says() {
        // Columns as in `events`; "-" is refused.
        let table = [
            ("creating", ["-", "-", "-", "-", "serving", "-", "detached", "failed"]),
            ("recovering", ["waiting", "-", "-", "-", "serving", "-", "-", "failed"]),
            ("waiting", ["-", "attaching", "detaching", "deleting", "-", "-", "-", "-"]),
            ("attaching", ["-", "-", "-", "-", "serving", "-", "-", "failed"]),
            ("serving", ["-", "-", "detaching", "deleting", "-", "-", "-", "failed"]),
            ("detaching", ["-", "-", "-", "-", "-", "detached", "-", "failed"]),
            ("detached", ["-", "attaching", "-", "deleting", "-", "-", "-", "-"]),
            ("failed", ["-", "attaching", "detaching", "deleting", "-", "-", "-", "-"]),
            ("deleting", ["-", "-", "-", "-", "-", "-", "-", "failed"]),
        ];
        for (state, (name, row)) in states().into_iter().zip(table) {
            assert_eq!(state.name(), name);
            for (event, expected) in events().into_iter().zip(row) {
                let after = state.after(event.clone()).map_or("-", |next| next.name());
                assert_eq!(after, expected, "{state} after {event:?}");
            }
        }
    }

    #[test]
    fn a_failure_keeps_its_reason() {
        let failed = State::Attaching.after(Event::Fail { reason: "why".into() }).unwrap();
        assert_eq!(failed.reason(), Some("why"));
    }

    #[test]
    fn every_state_but_those_of_a_start_is_reached_from_creating() {
        let mut reached = BTreeSet::from(["creating"]);
        let mut frontier = vec![State::Creating];
        while let Some(state) = frontier.pop() {
            for next in events().into_iter().filter_map(|event| state.after(event).ok()) {
                if reached.insert(next.name()) {
                    frontier.push(next);
                }
            }
        }
        let all: BTreeSet<_> =
            State::NAMES.into_iter().filter(|name| !["recovering", "waiting"].contains(name)).collect();
        assert_eq!(reached, all);
    }
}
