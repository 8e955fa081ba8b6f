//! A store that fails on purpose, over any other store: test support.
//!
//! Owns the faults and counts how often each fault fired, so that a test can demand every fault. Driven by a seed: the same calls
//! in the same order meet the same faults. Does not exist in the daemon. Invariant: stored objects are intact; faults change
//! answers, or keep requests from arriving.

mod line;

use std::fmt;
use std::future::pending;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::client::{HttpError, HttpErrorKind};
/// The usual store below a faulty one.
pub use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

pub use self::line::Line;
use super::classify::Answer;
use super::ids::Entropy;

use crate::locks::MutexExt;

/// A way in which a request fails or is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The answer comes some seconds late.
    Delay,
    /// The request never gets an answer.
    Stall,
    /// Status 500; the request did not arrive.
    ServerError,
    /// Status 503 SlowDown; the request did not arrive.
    SlowDown,
    /// The connection is cut half-way through a body, or before a request arrived.
    Cut,
    /// The request succeeds and the answer is lost.
    LostResponse,
    /// Status 409 or 412 for a creation that did not arrive, although no object is in its way.
    Conflict,
    /// Only half of an object, or of a range, is there.
    Truncated,
    /// A bit of an object is wrong.
    FlippedBit,
    /// An existing object seems to be missing.
    Missing,
    /// Status 403; the request did not arrive.
    Refused,
}

impl Fault {
    /// Every kind of fault.
    pub const ALL: [Self; 11] = [
        Self::Delay,
        Self::Stall,
        Self::ServerError,
        Self::SlowDown,
        Self::Cut,
        Self::LostResponse,
        Self::Conflict,
        Self::Truncated,
        Self::FlippedBit,
        Self::Missing,
        Self::Refused,
    ];
    /// Faults after which another try can succeed.
    pub const PASSING: [Self; 7] = [
        Self::Delay,
        Self::Stall,
        Self::ServerError,
        Self::SlowDown,
        Self::Cut,
        Self::LostResponse,
        Self::Conflict,
    ];
}

/// How late a late answer is at most.
const DELAY_MAX: Duration = Duration::from_secs(3);

/// Random numbers from a seed (SplitMix64).
#[derive(Debug)]
pub struct Seeded(Mutex<u64>);

impl Seeded {
    /// The sequence of random numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock_whole();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// A store with faults over an intact store.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    faults: Arc<Faults>,
}

/// The rate of each fault, and how often each fault has fired.
#[derive(Debug)]
pub struct Faults {
    entropy: Seeded,
    per_mille: [AtomicU64; Fault::ALL.len()],
    fired: [AtomicU64; Fault::ALL.len()],
    line: Line,
}

impl Faults {
    /// Faults with a rate of 0.
    pub fn new(seed: u64) -> Arc<Self> {
        let zeroes = || std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self {
            entropy: Seeded::new(seed),
            per_mille: zeroes(),
            fired: zeroes(),
            line: Line::default(),
        })
    }

    /// Sets the rate of `fault`: so many of a thousand requests for which the fault is possible.
    pub fn set(&self, fault: Fault, per_mille: u64) {
        self.per_mille[fault as usize].store(per_mille, Relaxed);
    }

    /// As [`Self::set`], for each of `faults`.
    pub fn set_all(&self, faults: &[Fault], per_mille: u64) {
        for fault in faults {
            self.set(*fault, per_mille);
        }
    }

    /// How often `fault` has fired.
    pub fn fired(&self, fault: Fault) -> u64 {
        self.fired[fault as usize].load(Relaxed)
    }

    /// The line that creations pass on their way to the store. The line takes no time until a test slows the line down.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Whether `fault` fires now. Counts the fault if so.
    fn fires(&self, fault: Fault) -> bool {
        let rate = self.per_mille[fault as usize].load(Relaxed);
        let fires = rate > 0 && self.entropy.next_u64() % 1000 < rate;
        if fires {
            self.fired[fault as usize].fetch_add(1, Relaxed);
        }
        fires
    }

    /// Faults of any request before the request arrives.
    async fn before(&self) -> Result<()> {
        if self.fires(Fault::Delay) {
            let nanos = u64::try_from(DELAY_MAX.as_nanos()).unwrap_or(u64::MAX);
            tokio::time::sleep(Duration::from_nanos(self.entropy.next_u64() % nanos)).await;
        }
        if self.fires(Fault::Stall) {
            pending::<()>().await;
        }
        if self.fires(Fault::ServerError) {
            return Err(status(500, "InternalError"));
        }
        if self.fires(Fault::SlowDown) {
            return Err(status(503, "SlowDown"));
        }
        if self.fires(Fault::Cut) {
            return Err(cut());
        }
        if self.fires(Fault::Refused) {
            return Err(Error::PermissionDenied { path: String::new(), source: "403".into() });
        }
        Ok(())
    }

    /// Faults of the answer to a request that changes something.
    fn after(&self) -> Result<()> {
        if self.fires(Fault::LostResponse) { Err(cut()) } else { Ok(()) }
    }
}

impl FaultyStore {
    /// A store over `inner`, in which `faults` fire.
    pub fn new(inner: Arc<dyn ObjectStore>, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

fn generic(kind: HttpErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: "faulty", source: Box::new(HttpError::new(kind, source)) }
}

fn status(status: u16, message: &str) -> Error {
    generic(HttpErrorKind::Unknown, Answer::new(status, message, None))
}

/// The error of a cut connection.
pub(super) fn cut() -> Error {
    generic(HttpErrorKind::Interrupted, io::Error::from(io::ErrorKind::ConnectionReset))
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.faults.before().await?;
        if self.faults.fires(Fault::Conflict) {
            return Err(Error::AlreadyExists { path: location.to_string(), source: "409".into() });
        }
        self.faults.line.pass(payload.content_length() as u64).await;
        let result = self.inner.put_opts(location, payload, opts).await?;
        self.faults.after().map(|()| result)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.faults.before().await?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.faults.before().await?;
        let head = options.head;
        let result = self.inner.get_opts(location, options).await?;
        if self.faults.fires(Fault::Missing) {
            return Err(Error::NotFound { path: location.to_string(), source: "fault".into() });
        }
        if head {
            return Ok(result);
        }
        let (mut meta, mut range) = (result.meta.clone(), result.range.clone());
        let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
        let bytes = result.bytes().await?;
        let half = bytes.len() / 2;
        let mut body = vec![Ok(bytes.clone())];
        if self.faults.fires(Fault::Cut) {
            body = vec![Ok(bytes.slice(..half)), Err(cut())];
        } else if bytes.len() > 1 && self.faults.fires(Fault::Truncated) {
            range = range.start..range.start + half as u64;
            meta.size = range.end;
            body = vec![Ok(bytes.slice(..half))];
        } else if !bytes.is_empty() && self.faults.fires(Fault::FlippedBit) {
            let mut wrong = bytes.to_vec();
            let bit = usize::try_from(self.faults.entropy.next_u64()).unwrap_or(0) % (wrong.len() * 8);
            wrong[bit / 8] ^= 1 << (bit % 8);
            body = vec![Ok(Bytes::from(wrong))];
        }
        let payload = GetResultPayload::Stream(stream::iter(body).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.faults.before().await?;
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (faults, after) = (self.faults.clone(), self.faults.clone());
        let arriving = locations.then(move |location| {
            let faults = faults.clone();
            async move {
                faults.before().await?;
                location
            }
        });
        let deleted = self.inner.delete_stream(arriving.boxed());
        deleted.map(move |answer| answer.and_then(|path| after.after().map(|()| path))).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        interrupted(self.faults.clone(), self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        interrupted(self.faults.clone(), self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.faults.before().await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.faults.before().await?;
        self.inner.copy_opts(from, to, options).await?;
        self.faults.after()
    }
}

/// A listing in which every item is a request of its own, like pages of one item.
fn interrupted(
    faults: Arc<Faults>,
    listing: BoxStream<'static, Result<ObjectMeta>>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let items = listing.then(move |meta| {
        let faults = faults.clone();
        async move {
            faults.before().await?;
            meta
        }
    });
    items.boxed()
}
