//! Measures the ways to append in the directory of the log, and chooses one way.
//!
//! Owns the load, the figures and the rule. Does not own how workers append. Each file is unlinked before anything is written,
//! so nothing stays behind. Blocks: call the probe before the workers start.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Appends, Engine};
use crate::buffer::{Pool, Slot};
use crate::observe::io::WorkerStats;
use crate::units::FRAME_BYTES;
use crate::worker::ring::{Event, Kind, Memory, Op, Options, Ring, Target};

/// Frames of an append: a header and eight writes of 4 KiB.
const RECORD_FRAMES: usize = 9;
const RECORD_BYTES: usize = RECORD_FRAMES * FRAME_BYTES;
/// Appends for which a file has room; later appends begin again at the file's start.
const RECORDS: usize = 16;
/// Appends which every way makes in one round; every fourth has a sync behind.
const APPENDS_PER_ROUND: usize = 16;
const SYNC_EVERY: usize = 4;
const ROUNDS: usize = 6;
/// No round begins after this time, except the first.
const TIME: Duration = Duration::from_millis(200);
/// No append begins after this time: a disk so slow is left to the page cache.
const TIME_MAX: Duration = Duration::from_secs(2);
/// The square root of the cost, against `pwrite`, from which on another way is worth the change: repetitions differ by less.
const WORTH: f64 = 0.95;
/// A way whose appends take longer than those of `pwrite` by this factor is not chosen.
const LATER: f64 = 1.05;

/// The figures of one way.
#[derive(Clone, Debug)]
pub struct Figures {
    pub engine: Engine,
    /// Median time of an append until the append may be acknowledged, and of an append with a sync behind; or why the way cannot
    /// be used here.
    pub outcome: Outcome,
}

/// Two median times, or why there are none.
pub type Outcome = Result<(Duration, Duration), Arc<io::Error>>;

/// The figures of all ways, and the choice.
#[derive(Clone, Debug)]
pub struct Probe {
    pub chosen: Engine,
    /// In the order of [`Engine::ALL`].
    pub figures: Vec<Figures>,
}

impl Probe {
    /// The figures of `engine`; `None` when `engine` was not measured.
    pub fn of(&self, engine: Engine) -> Option<&Outcome> {
        self.figures.iter().find(|figures| figures.engine == engine).map(|figures| &figures.outcome)
    }
}

/// Why the probe has no result.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no ring or no memory for the measurement.
    #[error("the ways to write to the cache could not be measured")]
    Setup(#[source] io::Error),
    /// The way which the configuration names does not work here.
    #[error("cache.engine = \"{engine}\" does not work in {directory}; \"auto\" takes the best that does")]
    Unusable {
        /// The way which the configuration names.
        engine: Engine,
        /// The directory of the log.
        directory: String,
        #[source]
        source: Arc<io::Error>,
    },
}

/// Measures every way in `directory` and chooses `wanted`, or the best.
///
/// The cost of a way is the product of both times, as ratios to those of `pwrite`. Ways whose appends take longer are out, and
/// `pwrite` is kept unless the cheapest way saves about a twentieth of each time. By that rule a disk which answers more slowly
/// than memory is left to the page cache. Where nothing can be written, `pwrite` is the choice as well, and on a full disk it is
/// whatever is `wanted`: the segments of the log can still be served.
pub fn run(directory: &Path, wanted: Option<Engine>) -> Result<Probe, ProbeError> {
    let pool = Pool::new(1, Arc::new(WorkerStats::default()))
        .map_err(|error| ProbeError::Setup(io::Error::other(error)))?;
    let options = Options { submissions: 8, completions: 8, ..Options::default() };
    let mut ring = Ring::new(&options).map_err(ProbeError::Setup)?;
    let registered = ring.register_arena(&pool);
    let mut lanes: Vec<Lane> = Engine::ALL.iter().map(|&engine| Lane::new(engine, directory)).collect();
    if let Err(error) = registered {
        let error = Arc::new(error);
        for lane in lanes.iter_mut().filter(|lane| lane.engine.appends == Appends::RingFixed) {
            lane.broken = Some(Arc::clone(&error));
        }
    }
    let mut slots: Vec<Slot> = (0..RECORD_FRAMES).map_while(|_| pool.try_acquire(FRAME_BYTES)).collect();
    for (number, slot) in slots.iter_mut().enumerate() {
        slot.fill(u8::try_from(number).unwrap_or(0) ^ 0x5a);
    }
    let began = Instant::now();
    for round in 0..ROUNDS {
        if round > 0 && began.elapsed() > TIME {
            break;
        }
        for lane in &mut lanes {
            lane.round(&mut ring, &mut slots, began + TIME_MAX);
        }
    }
    let figures: Vec<Figures> = lanes.into_iter().map(Lane::figures).collect();
    choose(figures, wanted, &directory.display().to_string())
}

fn choose(figures: Vec<Figures>, wanted: Option<Engine>, directory: &str) -> Result<Probe, ProbeError> {
    let mut probe = Probe { chosen: wanted.unwrap_or_default(), figures };
    if let Some(engine) = wanted {
        if engine != Engine::default()
            && let Some(Err(source)) = probe.of(engine)
        {
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
                probe.chosen = Engine::default();
                return Ok(probe);
            }
            let directory = directory.to_owned();
            return Err(ProbeError::Unusable { engine, directory, source: Arc::clone(source) });
        }
        return Ok(probe);
    }
    let Some(Ok(base)) = probe.of(probe.chosen).cloned() else { return Ok(probe) };
    let ratio = |time: Duration, base: Duration| time.as_secs_f64() / base.as_secs_f64();
    let costs = probe.figures.iter().filter_map(|figures| {
        let (append, synced) = *figures.outcome.as_ref().ok()?;
        let (append, synced) = (ratio(append, base.0), ratio(synced, base.1));
        (append <= LATER).then_some((append * synced, figures.engine))
    });
    // The cost is a product of two ratios.
    let best = costs.filter(|(cost, _)| *cost < WORTH * WORTH).min_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, engine)) = best {
        probe.chosen = engine;
    }
    Ok(probe)
}

/// One way under measurement, with a file of its own.
struct Lane {
    engine: Engine,
    file: Option<Arc<File>>,
    broken: Option<Arc<io::Error>>,
    next: usize,
    appends: Vec<Duration>,
    syncs: Vec<Duration>,
}

impl Lane {
    fn new(engine: Engine, directory: &Path) -> Self {
        let mut lane =
            Self { engine, file: None, broken: None, next: 0, appends: Vec::new(), syncs: Vec::new() };
        match make_file(engine, directory) {
            Ok(file) => lane.file = Some(Arc::new(file)),
            Err(error) => lane.broken = Some(Arc::new(error)),
        }
        lane
    }

    /// Makes the appends of one round, every fourth with a sync.
    fn round(&mut self, ring: &mut Ring<()>, slots: &mut Vec<Slot>, deadline: Instant) {
        for number in 0..APPENDS_PER_ROUND {
            let (Some(file), None) = (&self.file, &self.broken) else { return };
            if Instant::now() > deadline {
                return;
            }
            let sync = number % SYNC_EVERY == SYNC_EVERY - 1;
            let offset = ((self.next % RECORDS) * RECORD_BYTES) as u64;
            self.next += 1;
            let began = Instant::now();
            let mut outcome = append(self.engine.appends, file, offset, ring, slots);
            if sync && outcome.is_ok() {
                outcome = file.sync_data();
            }
            match outcome {
                Ok(()) if sync => self.syncs.push(began.elapsed()),
                Ok(()) => self.appends.push(began.elapsed()),
                Err(error) => self.broken = Some(Arc::new(error)),
            }
        }
    }

    fn figures(self) -> Figures {
        let outcome = match self.broken {
            Some(error) => Err(error),
            None => median(self.appends).zip(median(self.syncs)).ok_or_else(|| {
                let what = "the disk was too slow for the others to be measured as well";
                Arc::new(io::Error::new(io::ErrorKind::TimedOut, what))
            }),
        };
        Figures { engine: self.engine, outcome }
    }
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// A file like a segment's: allocated, written once, stable.
fn make_file(engine: Engine, directory: &Path) -> io::Result<File> {
    let path = directory.join(format!("probe-{engine}.tmp"));
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
    let appender = if engine.direct {
        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path)
    } else {
        file.try_clone()
    };
    fs::remove_file(&path)?;
    let appender = appender?;
    file.write_all_at(&vec![0; RECORDS * RECORD_BYTES], 0)?;
    file.sync_all()?;
    nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(appender)
}

fn append(
    appends: Appends,
    file: &Arc<File>,
    offset: u64,
    ring: &mut Ring<()>,
    slots: &mut Vec<Slot>,
) -> io::Result<()> {
    if slots.len() != RECORD_FRAMES {
        return Err(io::Error::other("memory is missing"));
    }
    let target = Target::from(Arc::clone(file));
    let op = match appends {
        Appends::Pwrite => return write_now(file, offset, slots),
        Appends::Ring => Op::writev(target, offset, std::mem::take(slots)),
        Appends::RingFixed if !ring.supports(Kind::WritevFixed) => {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel has no such operation (Linux 6.15)",
            ));
        }
        Appends::RingFixed => Op::writev_fixed(target, offset, std::mem::take(slots)),
    };
    ring.start(op.whole(), ());
    let mut events = Vec::new();
    while events.is_empty() {
        ring.submit_and_wait(None)?;
        ring.drain(&mut events);
    }
    let Some(Event::Operation(completion)) = events.pop() else {
        return Err(io::Error::other("another completion than that of the append"));
    };
    if let Memory::Slots(given_back) = completion.memory {
        *slots = given_back;
    }
    completion.result.map(drop)
}

fn write_now(file: &File, offset: u64, slots: &[Slot]) -> io::Result<()> {
    let parts: Vec<_> = slots.iter().map(|slot| io::IoSlice::new(slot)).collect();
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    match nix::sys::uio::pwritev(file, &parts, offset)? {
        RECORD_BYTES => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(outcomes: [Option<(u64, u64)>; 5]) -> Vec<Figures> {
        let of = |(engine, outcome): (Engine, Option<(u64, u64)>)| {
            let micros = |(append, synced)| (Duration::from_micros(append), Duration::from_micros(synced));
            let missing = || Arc::new(io::Error::from(io::ErrorKind::Unsupported));
            Figures { engine, outcome: outcome.map(micros).ok_or_else(missing) }
        };
        Engine::ALL.into_iter().zip(outcomes).map(of).collect()
    }

    fn chosen(outcomes: [Option<(u64, u64)>; 5]) -> &'static str {
        choose(figures(outcomes), None, "/cache").unwrap().chosen.name()
    }

    #[test]
    fn the_page_cache_stays_the_choice_where_the_disk_is_slow_to_answer() {
        assert_eq!(chosen([Some((5, 900)), Some((6, 900)), None, Some((500, 700)), None]), "pwrite");
    }

    #[test]
    fn a_way_that_acknowledges_later_is_not_chosen_however_fast_it_syncs() {
        let direct = Some((25, 26));
        assert_eq!(chosen([Some((16, 54)), Some((18, 53)), None, direct, direct]), "pwrite");
    }

    #[test]
    fn a_disk_as_fast_as_memory_is_written_directly() {
        let direct = Some((8, 20));
        assert_eq!(chosen([Some((10, 40)), Some((10, 40)), None, direct, None]), "ring-direct");
        assert_eq!(chosen([Some((10, 40)), None, None, direct, Some((7, 19))]), "ring-fixed-direct");
    }

    #[test]
    fn what_is_hardly_better_is_not_chosen() {
        assert_eq!(chosen([Some((100, 100)), Some((97, 98)), None, None, None]), "pwrite");
    }

    #[test]
    fn what_was_asked_for_is_taken_or_refused_with_the_cause() {
        let ring = Engine { appends: Appends::Ring, direct: false };
        let slow = figures([Some((1, 1)), Some((9, 9)), None, None, None]);
        assert_eq!(choose(slow.clone(), Some(ring), "/cache").unwrap().chosen, ring);
        let fixed = Engine { appends: Appends::RingFixed, direct: true };
        let error = choose(slow, Some(fixed), "/cache").unwrap_err().to_string();
        assert!(error.contains("ring-fixed-direct") && error.contains("/cache"), "{error}");
    }

    #[test]
    fn on_a_full_disk_nothing_can_be_measured_and_the_page_cache_serves() {
        let full = || Arc::new(io::Error::from_raw_os_error(libc::ENOSPC));
        let ring = Engine { appends: Appends::Ring, direct: true };
        for measured in 0..Engine::ALL.len() {
            let mut figures = figures([Some((1, 1)); 5]);
            figures[measured..].iter_mut().for_each(|figures| figures.outcome = Err(full()));
            let is_measured = Engine::ALL[..measured].contains(&ring);
            let expected = if is_measured { ring } else { Engine::default() };
            assert_eq!(choose(figures, Some(ring), "/cache").unwrap().chosen, expected);
        }
    }

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let probe = run(directory.path(), None).unwrap();
        assert_eq!(probe.figures.len(), Engine::ALL.len());
        let pwrite = probe.figures[0].outcome.as_ref().unwrap();
        assert!(pwrite.0 > Duration::ZERO && pwrite.1 >= pwrite.0);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        let probe = run(Path::new("/nowhere"), None).unwrap();
        assert!(probe.chosen == Engine::default() && probe.of(probe.chosen).unwrap().is_err());
    }
}
