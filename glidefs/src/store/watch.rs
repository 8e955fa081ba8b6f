//! The trace of a request to the store, for readers of traces.
//!
//! Owns the words of a trace about one request, with all tries. Does not own the request (`retry`), nor the readers (`observe::trace`).
//! Invariants: a trace has keys and never credentials; a request that is given up by its caller is traced as well.

use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::{ListResult, ObjectMeta};

use super::error::StoreError;
use super::retry::Tries;
use super::stats::Operation;
use crate::observe::trace::StoreTrace;

/// The answer to a request.
pub(super) trait Answer {
    /// Length of the payload, where the answer tells.
    fn bytes(&self) -> Option<u64> {
        None
    }

    /// A word for the answer.
    fn word(&self) -> &'static str {
        "ok"
    }
}

impl Answer for () {}
impl Answer for ListResult {}
impl Answer for ObjectMeta {}

impl Answer for Bytes {
    fn bytes(&self) -> Option<u64> {
        Some(self.len() as u64)
    }
}

/// A request that is watched by a reader. A drop before the end means that the caller has given the request up.
pub(super) struct RequestWatch<'a> {
    of: &'a Tries<'a>,
    began: Instant,
    waited: Duration,
    tries: u32,
    has_ended: bool,
}

impl<'a> RequestWatch<'a> {
    /// Begins with a request, if anybody wants traces.
    #[inline]
    pub fn begin(of: &'a Tries<'a>) -> Option<Self> {
        let is_wanted = of.stats.traces.are_wanted();
        is_wanted.then(|| Self {
            of,
            began: Instant::now(),
            waited: Duration::ZERO,
            tries: 0,
            has_ended: false,
        })
    }

    /// Notes the begin of try number `tries`, after a wait of `waited` for a turn.
    pub fn tries(&mut self, tries: u32, waited: Duration) {
        self.tries = tries;
        self.waited += waited;
    }

    /// Notes a pause between two tries.
    pub fn waited(&mut self, pause: Duration) {
        self.waited += pause;
    }

    /// Tells the readers how the request ended.
    pub fn end<T: Answer>(mut self, ended: &Result<(T, u32), StoreError>) {
        self.has_ended = true;
        match ended {
            Ok((answer, _)) => self.tell(answer.bytes(), answer.word()),
            Err(error) => self.tell(None, word(error)),
        }
    }

    fn tell(&self, bytes: Option<u64>, result: &'static str) {
        let took = self.began.elapsed();
        let reader = self.of.reader.map(|(_, reader)| reader.volume.to_string());
        self.of.stats.traces.push(&StoreTrace {
            operation: self.of.operation.name(),
            key: self.of.key.into(),
            is_read: reader.is_some(),
            volume: reader.or_else(|| volume_of(self.of.key).map(Into::into)),
            bytes: length(self.of.operation, bytes, self.of.payload_bytes),
            began: self.began,
            took,
            waited: self.waited.min(took),
            tries: self.tries,
            result,
        });
    }
}

impl Drop for RequestWatch<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.tell(None, "given_up");
        }
    }
}

/// The bytes of a request whose answer has told `told`. Only of a PUT is `meant` what is sent: of other requests it bounds the time.
fn length(operation: Operation, told: Option<u64>, meant: u64) -> u64 {
    told.unwrap_or(if operation == Operation::Put { meant } else { 0 })
}

/// The id of the volume in `key`, which begins with the prefix of the store: the prefix may have a folder of the same name.
fn volume_of(key: &str) -> Option<&str> {
    let (mut volume, mut behind) = (None, None);
    for part in key.rsplit('/') {
        if part == "volumes" {
            volume = behind;
            break;
        }
        behind = Some(part);
    }
    volume
}

fn word(error: &StoreError) -> &'static str {
    match error {
        StoreError::Missing { .. } => "missing",
        StoreError::Damaged { .. } => "damaged",
        StoreError::Refused { .. } => "refused",
        StoreError::Rejected { .. } => "rejected",
        StoreError::Unreachable { .. } => "unreachable",
        StoreError::ShuttingDown { .. } => "stopping",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_and_a_failed_read_have_no_bytes_and_a_put_has_those_of_its_object() {
        assert_eq!(length(Operation::List, None, 4 << 30), 0);
        assert_eq!(length(Operation::Get, None, 64 << 20), 0);
        assert_eq!(length(Operation::Get, Some(7), 64 << 20), 7);
        assert_eq!(length(Operation::Put, None, 17), 17);
    }

    #[test]
    fn the_volume_of_a_key_stands_behind_the_folder_of_volumes_whatever_the_prefix() {
        assert_eq!(volume_of("volumes/0123/packs/4567"), Some("0123"));
        assert_eq!(volume_of("some/prefix/volumes/0123/manifests/1"), Some("0123"));
        assert_eq!(volume_of("volumes/prod/volumes/0123/packs/1"), Some("0123"));
        assert_eq!(volume_of("prefix/names/vm-1"), None);
        assert_eq!(volume_of("volumes"), None);
    }
}
