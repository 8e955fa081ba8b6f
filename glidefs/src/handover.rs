//! The upgrade of a running daemon: another program goes on in the same process.
//!
//! ```text
//!  serving ── run --check, a child ──▶ refused: serves on as before
//!     │ operations end, the checkpoint is written; devices are served
//!   execve ──▶ the new program opens the cache, takes the devices back ──▶ serves
//!                 │ an error or a panic before
//!               execve ──▶ the program before, out of its open file ──▶ serves again
//! ```
//!
//! At `execve` the kernel ends threads, rings and descriptors as it does after a kill: devices wait, locks are let go, and the next
//! program starts on the way of every restart. The process stays the main one of the service.
//!
//! Owns the list for the next program, `execve`, and the way back. Does not own the end and the start of a daemon
//! (`daemon`). Invariants: one upgrade is one `execve`, and at most one back; nothing of the list is in arguments or in the environment,
//! which other processes may read.
//!
//! | File | What it owns |
//! |---|---|
//! | `program` | which program may follow, and the arguments of this one |
//! | `check` | the check of the next program, before anything is changed |

mod check;
mod program;

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

pub use self::check::{Candidate, Identity, UNSET, check, directory_at};
pub use self::program::Launch;
use crate::locks::MutexExt;
use crate::observe::logging;
use crate::units::{ExportId, nanos};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The environment variable with the number of the descriptor of a [`Handed`].
const VARIABLE: &str = "GLIDEFS_HANDED";
/// The name of the file in memory with a [`Handed`].
const FILE_NAME: &CStr = c"glidefs-handed";
/// Longest [`Handed`] to be read: a million exports and a long configuration.
const HANDED_BYTES_MAX: u64 = 64 << 20;

/// The end of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrade {
    /// When the upgrade began, milliseconds since 1970-01-01 UTC.
    pub began_unix_millis: u64,
    /// The version of the program before.
    pub from: String,
    /// The version of the new program; `None` where the check has failed.
    pub to: Option<String>,
    /// Why the program before serves on or again; `None` after success.
    pub failure: Option<String>,
}

/// The list which the program before in this process has left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Handed {
    /// The upgrade as it would end if this program served. With a failure, this is the program before, which serves again.
    pub upgrade: Upgrade,
    /// When requests began to wait, nanoseconds of the monotonic clock.
    waiting_nanos: u64,
    /// The last start counted by the catalog: another daemon has had the cache meanwhile where the catalog knows of more.
    pub start: u32,
    /// The exports served until then, each with the epoch in which the host has the volume.
    pub tenures: Vec<(ExportId, u64)>,
    /// The configuration of the program before: the file may be one for the new program by now.
    config: String,
    /// How the program before was started.
    launch: Launch,
    /// The descriptor of the program before.
    before: Option<RawFd>,
    /// The way back to the program before.
    #[serde(skip)]
    pub way_back: WayBack,
}

/// The way back to the program before, open until this one serves. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct WayBack(Arc<Mutex<Option<Before>>>);

#[derive(Debug)]
struct Before {
    program: OwnedFd,
    handed: Handed,
    /// The CPUs of the process: a failing thread may be pinned to one of them.
    cpus: CpuSet,
}

impl Handed {
    /// A list for the next program: `upgrade`, the catalog's count of starts, the exports served, and the configuration and the start of
    /// this program.
    pub fn new(
        upgrade: Upgrade,
        start: u32,
        tenures: Vec<(ExportId, u64)>,
        config: &str,
        launch: Launch,
    ) -> Self {
        let (waiting_nanos, config) = (monotonic_nanos(), config.into());
        let (before, way_back) = (None, WayBack::default());
        Self { upgrade, waiting_nanos, start, tenures, config, launch, before, way_back }
    }

    /// Takes the list of the program before, if there was one. To be called before any thread is started.
    pub fn take() -> Option<Self> {
        let number: RawFd = std::env::var(VARIABLE).ok()?.parse().ok()?;
        let path = format!("/proc/self/fd/{number}");
        // The variable may also have been inherited by a child of a daemon.
        let name = std::fs::read_link(&path).ok()?;
        let is_list = name.as_os_str().as_bytes().strip_prefix(b"/memfd:")?.starts_with(FILE_NAME.to_bytes());
        if !is_list {
            return None;
        }
        // The kernel has named the process after the number of a descriptor.
        let _ = nix::sys::prctl::set_name(c"glidefs");
        let mut text = Vec::new();
        // Opened anew, so read from the beginning.
        File::open(path).ok()?.take(HANDED_BYTES_MAX).read_to_end(&mut text).ok()?;
        nix::unistd::close(number).ok()?;
        let mut handed: Self = serde_json::from_slice(&text).ok()?;
        let before = handed.before.take().and_then(|number| Before::open(number, &handed).ok());
        handed.way_back = WayBack(Arc::new(Mutex::new(before)));
        Some(handed)
    }

    /// The configuration of this program before the upgrade; `None` for a new program, which reads the file.
    pub fn config(&self) -> Option<&str> {
        self.upgrade.failure.is_some().then_some(&self.config)
    }

    /// When the requests of devices began to wait.
    pub fn waiting_since(&self) -> Instant {
        let waited = Duration::from_nanos(monotonic_nanos().saturating_sub(self.waiting_nanos));
        let now = Instant::now();
        now.checked_sub(waited).unwrap_or(now)
    }

    /// Goes on as `program`, or, where the kernel refuses, as this program anew, with the failure. Returns only when the kernel refuses
    /// both. All threads end, whatever they do.
    pub fn leave_to(mut self, program: &Path) -> io::Error {
        // Without a way back the new program's failure is the end of the process.
        let own = Path::new("/proc/self/exe");
        let before = nix::fcntl::open(own, OFlag::O_RDONLY, Mode::empty()).ok();
        self.before = before.as_ref().map(AsRawFd::as_raw_fd);
        let error = self.execute(program);
        drop(before);
        tracing::error!(error = &error as &dyn std::error::Error, "the new program cannot be started");
        self.upgrade.failure = Some(format!("{} could not be started: {error}", program.display()));
        self.before = None;
        self.execute(own)
    }

    fn execute(&self, program: &Path) -> io::Error {
        let passed = match self.pass_on() {
            Ok(passed) => passed,
            Err(error) => return error,
        };
        logging::flush();
        Command::new(program)
            .arg0(&self.launch.name)
            .args(&self.launch.arguments)
            .env(VARIABLE, passed.as_raw_fd().to_string())
            .exec()
    }

    /// A file in memory with this list, inherited by the next program in this process.
    fn pass_on(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create(FILE_NAME, MFdFlags::empty())?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }
}

impl Before {
    /// The program before, whose file is open as `number`, with the list that it has `handed` over.
    fn open(number: RawFd, handed: &Handed) -> io::Result<Self> {
        // Opened anew, so closed at `execve`.
        let program = File::open(format!("/proc/self/fd/{number}"))?.into();
        nix::unistd::close(number)?;
        Ok(Self { program, handed: handed.clone(), cpus: sched_getaffinity(Pid::from_raw(0))? })
    }
}

impl WayBack {
    /// Notes that the catalog counts this start as `start`.
    pub fn counted(&self, start: u32) {
        if let Some(before) = &mut *self.0.lock_whole() {
            before.handed.start = start;
        }
    }

    /// Closes the way back: this program serves.
    pub fn close(&self) {
        *self.0.lock_whole() = None;
    }

    /// Goes back to the program before, as this one has failed because of `reason`. Returns only without a way back, or when the kernel
    /// refuses.
    pub fn go(&self, reason: String) {
        let Some(Before { program, mut handed, cpus }) = self.0.lock_whole().take() else { return };
        tracing::error!(reason, "the upgrade has failed: the program before serves again");
        handed.upgrade.failure = Some(reason);
        // The program before does not serve well on one CPU, and not at all if it is not started.
        let _ = sched_setaffinity(Pid::from_raw(0), &cpus);
        let error = handed.execute(Path::new(&format!("/proc/self/fd/{}", program.as_raw_fd())));
        tracing::error!(error = &error as &dyn std::error::Error, "the program before cannot be started");
    }

    /// Takes the way back at a panic too, which would end the process.
    pub fn at_panics(&self) {
        let (way_back, before) = (self.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            way_back.go(panic.to_string());
        }));
    }
}

/// The time of the clock of all programs of this boot, nanoseconds.
fn monotonic_nanos() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    nanos(time.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: &str = "GLIDEFS_TEST_OF_PANICS";

    fn handed() -> Handed {
        let upgrade =
            Upgrade { began_unix_millis: u64::MAX, from: "1".into(), to: Some("2".into()), failure: None };
        let launch = Launch { program: "/p".into(), name: "glidefs".into(), arguments: vec!["a b".into()] };
        Handed::new(
            upgrade,
            3,
            vec![(ExportId(u32::MAX), u64::MAX); 9_999],
            "[cache]\nsize = \"1GiB\"\n",
            launch,
        )
    }

    #[test]
    fn what_is_handed_comes_out_of_the_file_in_memory_as_it_went_in() {
        let (handed, before) = (handed(), Instant::now());
        let file = handed.pass_on().unwrap();
        let text = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let taken: Handed = serde_json::from_slice(&text).unwrap();
        assert_eq!((&taken.upgrade, taken.start, &taken.tenures), (&handed.upgrade, 3, &handed.tenures));
        assert!(
            taken.waiting_since() <= Instant::now()
                && taken.waiting_since() + Duration::from_secs(1) > before
        );
        assert_eq!(taken.config(), None, "a new program reads the file");
        let failure = Some("no room".into());
        let again = Handed { upgrade: Upgrade { failure, ..taken.upgrade.clone() }, ..taken };
        assert_eq!(again.config(), Some("[cache]\nsize = \"1GiB\"\n"));
    }

    #[test]
    fn a_way_back_that_is_closed_or_was_none_leads_nowhere() {
        WayBack::default().go("a test".into());
        let program = File::open("/bin/false").unwrap().into();
        let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let way_back = WayBack(Arc::new(Mutex::new(Some(Before { program, handed: handed(), cpus }))));
        way_back.close();
        way_back.go("a test".into());
    }

    /// A child of this test is the new program, and panics on a thread; `echo` is the program before.
    #[test]
    fn a_panic_leads_back_to_the_program_before() {
        if std::env::var_os(CHILD).is_some() {
            let program = File::open("/bin/echo").unwrap().into();
            let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let way_back = WayBack(Arc::new(Mutex::new(Some(Before { program, handed: handed(), cpus }))));
            way_back.at_panics();
            let _ = std::thread::spawn(|| panic!("a bug")).join();
            std::process::exit(9);
        }
        let name = "handover::tests::a_panic_leads_back_to_the_program_before";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.ends_with("a b\n"), "{child:?}");
        assert!(String::from_utf8_lossy(&child.stderr).contains("a bug"), "{child:?}");
    }
}
