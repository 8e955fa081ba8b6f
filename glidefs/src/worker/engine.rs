//! The ways in which workers append to the log.
//!
//! Owns the names of the ways. Does not own how an append is carried out (`run`), nor which way is chosen ([`probe`]).

pub mod probe;

use std::fmt;

/// Who carries out an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Appends {
    /// The worker, with one `pwritev`. The call must not wait for the disk: only through the page cache.
    #[default]
    Pwrite,
    /// The ring, while the worker goes on.
    Ring,
    /// The ring, from registered buffers (Linux 6.15).
    RingFixed,
}

impl Appends {
    /// The same way where buffers cannot be registered.
    #[must_use]
    pub fn without_registered_buffers(self) -> Self {
        if self == Self::RingFixed { Self::Ring } else { self }
    }
}

/// A way to append, as `cache.engine` names one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Who carries out the appends.
    pub appends: Appends,
    /// Whether appends go past the page cache (`O_DIRECT`).
    pub direct: bool,
}

impl Engine {
    /// All ways. The others are measured against the first.
    pub const ALL: [Self; 5] = [
        Self { appends: Appends::Pwrite, direct: false },
        Self { appends: Appends::Ring, direct: false },
        Self { appends: Appends::RingFixed, direct: false },
        Self { appends: Appends::Ring, direct: true },
        Self { appends: Appends::RingFixed, direct: true },
    ];

    /// The way's name in `cache.engine`.
    pub fn name(self) -> &'static str {
        match (self.appends, self.direct) {
            (Appends::Pwrite, _) => "pwrite",
            (Appends::Ring, false) => "ring",
            (Appends::RingFixed, false) => "ring-fixed",
            (Appends::Ring, true) => "ring-direct",
            (Appends::RingFixed, true) => "ring-fixed-direct",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
