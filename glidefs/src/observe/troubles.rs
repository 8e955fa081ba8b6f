//! What is wrong outside the devices: parts that the daemon serves without.
//!
//! Owns the list for status, `/metrics` and the log. Does not own the tries. Invariant: the log tells of a trouble once, when it begins, when
//! its cause changes, and when it ends.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::locks::MutexExt;

/// A part that may be in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The TCP address of the API.
    Tcp,
    /// The Unix socket of the API.
    Socket,
    /// The group of the socket.
    Group,
    /// The file with the token.
    Token,
    /// The disk of the cache.
    Disk,
    /// The file with the configuration.
    Configuration,
}

impl Part {
    /// Each part, at the place of its number: the label on `/metrics`, and the trouble in a sentence.
    const TEXTS: [(&'static str, &'static str); 6] = [
        ("tcp", "the API has no TCP address"),
        ("socket", "the API has no socket, so the command line does not reach the daemon"),
        ("group", "the API's socket is not open to its group"),
        ("token", "no request over TCP can carry a token"),
        ("disk", "the disk of the cache stands still, and so do devices"),
        (
            "configuration",
            "the file with the configuration is refused, and its content of before is used: correct the file, and then \
             systemctl reload glidefs",
        ),
    ];
}

/// The troubles of this moment.
#[derive(Debug, Default)]
pub struct Troubles(Mutex<BTreeMap<Part, String>>);

impl Troubles {
    /// Notes how `part` is: `None` is well.
    pub fn set(&self, part: Part, cause: Option<String>) {
        let (name, what) = Part::TEXTS[part as usize];
        let mut list = self.0.lock_whole();
        let before = match &cause {
            Some(cause) => list.insert(part, cause.clone()),
            None => list.remove(&part),
        };
        drop(list);
        match cause {
            Some(cause) if before.as_ref() != Some(&cause) => {
                tracing::warn!(part = name, what, cause, "a part is in trouble");
            }
            None if before.is_some() => tracing::info!(part = name, "a part works again"),
            _ => {}
        }
    }

    /// The parts in trouble.
    #[cfg(test)]
    pub fn parts(&self) -> Vec<Part> {
        self.0.lock_whole().keys().copied().collect()
    }

    /// The label of every part, and whether the part is in trouble.
    pub fn states(&self) -> [(&'static str, bool); 6] {
        let mut states = Part::TEXTS.map(|(name, _)| (name, false));
        for part in self.0.lock_whole().keys() {
            states[*part as usize].1 = true;
        }
        states
    }

    /// A sentence for each trouble.
    pub fn sentences(&self) -> Vec<String> {
        let list = self.0.lock_whole();
        list.iter().map(|(part, cause)| format!("{}: {cause}", Part::TEXTS[*part as usize].1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::logging::captured;

    #[test]
    fn the_log_tells_of_a_trouble_when_it_begins_changes_and_ends() {
        let troubles = Troubles::default();
        let set = |cause: Option<&str>| captured(|| troubles.set(Part::Tcp, cause.map(Into::into)));
        assert!(set(None).is_empty());
        assert!(set(Some("taken")).contains("cause=\"taken\""));
        assert!(set(Some("taken")).is_empty());
        assert_eq!(troubles.sentences(), ["the API has no TCP address: taken"]);
        assert_eq!(troubles.states()[..2], [("tcp", true), ("socket", false)]);
        assert!(set(Some("gone")).contains("gone"));
        assert!(set(None).contains("works again"));
        assert!(troubles.states().iter().all(|(_, is_troubled)| !is_troubled));
    }
}
