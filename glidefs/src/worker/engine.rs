//! The ways in which workers append to the log.
//!
//! Owns their names. Does not own how an append is carried out (`run`), nor which way is chosen ([`probe`]).

pub mod probe;

use std::fmt;

/// Who carries out an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Appends {
    /// The worker itself, with one `pwritev`, which must not wait for the disk: only through the page cache.
    #[default]
    Pwrite,
    /// The ring, while the worker goes on.
    Ring,
    /// The ring, from registered buffers (Linux 6.15).
    RingFixed,
}

impl Appends {
    /// What is left of it where buffers cannot be registered.
    #[must_use]
    pub fn without_registered_buffers(self) -> Self {
        if self == Self::RingFixed { Self::Ring } else { self }
    }
}

/// A way to append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Who does it.
    pub appends: Appends,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
}

impl Engine {
    /// All of them; the first is the one others are measured against.
    pub const ALL: [Self; 5] = [
        Self { appends: Appends::Pwrite, direct: false },
        Self { appends: Appends::Ring, direct: false },
        Self { appends: Appends::RingFixed, direct: false },
        Self { appends: Appends::Ring, direct: true },
        Self { appends: Appends::RingFixed, direct: true },
    ];

    /// What it is called.
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
