//! The configuration, the daemon, and leftovers of dead daemons: what all checks look at first, and the checks of these.
//!
//! Does not own the checks of the configuration (`config`) nor of the token (`api`). Invariant: values of the daemon's environment may be
//! secret, and are given to the store's set-up only.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use uuid::Uuid;

use super::kernel::Driver;
use super::{Finding, answer, failure, for_root, note, ok, warning};
use crate::api::{self, Token, TokenError};
use crate::cache::{Cache, Directory};
use crate::config::{BOUNCE_MODE_VARIABLE, Config, ConfigError, CpuList};
use crate::observe::chain;
use crate::store::Variables;
use crate::ublk::{DeviceState, Features, Survey, Surveyed, survey};
use crate::worker::cpus::{Usable, quota_of};

/// How long the socket is waited for.
const SOCKET_PATIENCE: Duration = Duration::from_secs(5);
/// A daemon at work changes the condition of a device within this time.
const PAUSE: Duration = Duration::from_secs(2);
/// The question whether the daemon is ready.
const QUESTION: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// Names that a line of findings lists at most.
const LISTED_MAX: usize = 5;

/// What more than one check needs to know.
#[derive(Debug)]
pub(super) struct Host {
    /// The path of the configuration file.
    pub path: PathBuf,
    /// Whether this command may look at everything.
    pub is_root: bool,
    /// The configuration; the defaults where the file is refused.
    pub config: Config,
    /// Why the file was refused.
    pub refused: Option<ConfigError>,
    pub socket: Socket,
    /// The daemon that listens on the socket.
    pub daemon: Option<Daemon>,
    /// All ublk devices of the host, or why the kernel does not tell.
    pub devices: Result<Survey, String>,
    pub driver: Driver,
    /// The identity of the store at `[store] url`.
    pub store_id: Option<Uuid>,
}

impl Host {
    /// Looks at the host, for a daemon of the configuration file at `path`.
    pub async fn find(path: &Path) -> Self {
        let mut loaded = load(path, None).await;
        let socket = Socket::ask(&loaded.0.api.socket).await;
        let daemon = match &socket {
            Socket::Listens { process: Some(pid), .. } => Daemon::find(*pid).await,
            _ => None,
        };
        if daemon.is_some() {
            // The settings depend on the CPUs and the environment, and those of the daemon count.
            loaded = load(path, daemon.as_ref()).await;
        }
        let (config, refused) = loaded;
        let directory = config.cache.dir.clone();
        // A directory without an answer has a finding of its own.
        let tag = answer(move || Cache::tag_on(&Directory::new(directory))).await.unwrap_or(None);
        let mut devices = all_devices(tag).await;
        if let (Socket::Listens { .. }, Ok(first)) = (&socket, &devices)
            && first.devices.iter().any(|device| device.is_ours && device.state != DeviceState::Live)
        {
            tokio::time::sleep(PAUSE).await;
            let first = first.devices.clone();
            devices = all_devices(tag).await.map(|second| in_both(&first, second));
        }
        Self {
            path: path.to_owned(),
            is_root: nix::unistd::geteuid().is_root(),
            config,
            refused,
            socket,
            daemon,
            devices,
            driver: answer(Features::probe).await,
            store_id: None,
        }
    }

    /// The paths of the devices of our cache that are in `state`.
    pub fn devices(&self, state: DeviceState) -> Vec<String> {
        let devices = self.devices.iter().flat_map(|survey| &survey.devices);
        let found = devices.filter(|device| device.is_ours && device.state == state);
        found.map(|device| device.id.path()).collect()
    }

    /// Whether a device of our cache has `path`.
    pub fn has_device(&self, path: &str) -> bool {
        let mut devices = self.devices.iter().flat_map(|survey| &survey.devices);
        devices.any(|device| device.is_ours && device.id.path() == path)
    }
}

async fn all_devices(tag: Option<u32>) -> Result<Survey, String> {
    answer(move || survey(tag)).await?.map_err(|error| chain(&error))
}

/// The survey `second` without the devices that are not served, and were in another condition at `first`: a daemon works on these.
fn in_both(first: &[Surveyed], mut second: Survey) -> Survey {
    second.devices.retain(|device| device.state == DeviceState::Live || first.contains(device));
    second
}

/// The configuration at `path`, or the defaults and the refusal: for the CPUs and the environment of `daemon`, or of this process.
async fn load(path: &Path, daemon: Option<&Daemon>) -> (Config, Option<ConfigError>) {
    let bounce = match daemon {
        Some(Daemon { variables: Some(variables), .. }) => {
            let found = variables.iter().find(|(key, _)| key == BOUNCE_MODE_VARIABLE);
            found.map(|(_, value)| value.into())
        }
        _ => std::env::var_os(BOUNCE_MODE_VARIABLE),
    };
    let usable = daemon.and_then(|daemon| daemon.usable.clone());
    let file = path.to_owned();
    let loaded = answer(move || {
        let usable = usable.map_or_else(|| Usable::find().map_err(ConfigError::Cpus), Ok)?;
        Config::load_for(&file, &usable, bounce.as_deref())
    });
    let loaded = loaded.await.unwrap_or_else(|silence| {
        let source = io::Error::new(io::ErrorKind::TimedOut, silence);
        Err(ConfigError::Read { path: path.to_owned(), source })
    });
    match loaded {
        Ok(config) => (config, None),
        Err(refused) => {
            let cpus = Usable::find().map(|usable| {
                let workers = usable.workers(usable.cpus.len());
                usable.cpus.into_iter().take(workers).collect()
            });
            (Config { worker_cpus: cpus.unwrap_or_default(), ..Config::default() }, Some(refused))
        }
    }
}

/// The process of a daemon, as the kernel shows it.
#[derive(Debug)]
pub(super) struct Daemon {
    pub pid: i32,
    /// The environment of the start; `None` where this command may not read it.
    pub variables: Option<Variables>,
    /// The CPUs and the CPU time; `None` where the kernel does not tell.
    usable: Option<Usable>,
    /// Number of the worker threads.
    pub workers: usize,
}

impl Daemon {
    /// The process `pid`; `None` where the kernel does not tell about it.
    async fn find(pid: i32) -> Option<Self> {
        // The environment of a process is read from its memory, which may be locked.
        answer(move || Self::read(pid)).await.ok()
    }

    fn read(pid: i32) -> Self {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let environment = fs::read(folder.join("environ")).ok();
        let threads = fs::read_dir(folder.join("task")).into_iter().flatten();
        let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        Self {
            pid,
            variables: environment.map(|bytes| variables(&bytes)),
            usable: allowed(&text("status")).map(|cpus| Usable { cpus, quota: quota_of(&text("cgroup")) }),
            workers: names.filter(|name| name.starts_with("worker-")).count(),
        }
    }
}

/// Names and values in the content of `/proc/PID/environ`.
fn variables(environment: &[u8]) -> Variables {
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_str().map(str::to_owned);
    let variable = |entry: &[u8]| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        Some((text(&entry[..at])?, text(&entry[at + 1..])?))
    };
    environment.split(|byte| *byte == 0).filter_map(variable).collect()
}

/// The CPUs in the text of `/proc/PID/status`.
fn allowed(status: &str) -> Option<Vec<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().parse::<CpuList>().ok()?.cpus().to_vec())
}

/// The socket of the API.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Socket {
    Absent,
    Listens {
        /// `None` where the kernel does not tell.
        process: Option<i32>,
        /// Whether every export has been seen to; `None` without an answer.
        is_ready: Option<bool>,
    },
    /// The file is of a dead daemon.
    Dead,
    /// The socket could not be tried: the kernel's error.
    Unknown(String),
}

impl Socket {
    async fn ask(path: &Path) -> Self {
        let connected = tokio::time::timeout(SOCKET_PATIENCE, UnixStream::connect(path)).await;
        let mut stream = match connected.map_err(|_| io::Error::other("no connection is taken")).flatten() {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => return Self::Absent,
                io::ErrorKind::ConnectionRefused => return Self::Dead,
                _ => return Self::Unknown(error.to_string()),
            },
        };
        let peer = stream.peer_cred().ok();
        let asked = async {
            stream.write_all(QUESTION).await?;
            let mut status = [0; "HTTP/1.1 200".len()];
            stream.read_exact(&mut status).await?;
            io::Result::Ok(status == *b"HTTP/1.1 200")
        };
        let answered = tokio::time::timeout(SOCKET_PATIENCE, asked).await;
        Self::Listens {
            // A daemon in another process namespace has the id 0 here.
            process: peer.and_then(|peer| peer.pid().filter(|pid| *pid > 0)),
            is_ready: answered.ok().and_then(Result::ok),
        }
    }
}

/// The configuration file, and the group that it names.
pub(super) fn configuration(host: &Host) -> Vec<Finding> {
    let mut findings = vec![file(host).named("configuration")];
    if let Some(name) = &host.config.api.group {
        let finding = match api::group(name) {
            Ok(_) => ok(name),
            Err(error) => warning(chain(&error))
                .why("only root and the daemon's user may use the API's socket; an upgrade is refused")
                .mend(format!("groupadd --system {name}, or change [api] group")),
        };
        findings.push(finding.named("API group"));
    }
    findings
}

fn file(host: &Host) -> Finding {
    match &host.refused {
        None => ok(host.path.display().to_string()),
        Some(error @ ConfigError::Read { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied && !host.is_root =>
        {
            for_root(chain(error))
                .why("the checks below are of the defaults, and the store was not asked")
        }
        Some(error) => failure(chain(error))
            .why(
                "a start goes on with the configuration that served last, and fails without one; the checks below are of the defaults, and \
                 the store was not asked",
            )
            .mend("correct the line, or write a file with glidefs init; then systemctl reload-or-restart glidefs"),
    }
}

/// The file with the token of the API, if there is to be one.
pub(super) fn token(host: &Host) -> Vec<Finding> {
    let Some(path) = &host.config.api.token_file else { return Vec::new() };
    vec![judge_token(Token::load(path).map(drop), host.is_root).named("API token")]
}

fn judge_token(loaded: Result<(), TokenError>, is_root: bool) -> Finding {
    let Err(error) = loaded else { return ok("the file has a token that only its owner can read") };
    let kind = match &error {
        TokenError::Read { source, .. } => Some(source.kind()),
        _ => None,
    };
    if kind == Some(io::ErrorKind::PermissionDenied) && !is_root {
        return for_root(chain(&error));
    }
    let mend = match &error {
        TokenError::Exposed { path, .. } => format!("chmod 600 '{}'", path.display()),
        TokenError::NotAToken { path } => new_token(path),
        TokenError::Read { path, .. } if kind == Some(io::ErrorKind::NotFound) => new_token(path),
        _ => "set [api] token_file to a file that the daemon can read".into(),
    };
    warning(chain(&error)).why("no request over TCP can carry a token; an upgrade is refused").mend(mend)
}

/// The command that writes a token where there is none.
fn new_token(path: &Path) -> String {
    format!("(umask 077; openssl rand -hex 32 > '{}'), and give the token to the clients", path.display())
}

/// The daemon, and devices of this cache.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    vec![daemon(&host.socket, &host.config.api.socket).named("daemon"), devices(host).named("devices")]
}

fn daemon(socket: &Socket, path: &Path) -> Finding {
    const LOG: &str = "wait; journalctl -u glidefs -n 30 says what the daemon does";
    let path = path.display();
    let name = match socket {
        Socket::Listens { process: Some(process), .. } => format!("process {process}"),
        _ => "a daemon".into(),
    };
    match socket {
        Socket::Absent => ok("does not run"),
        Socket::Listens { is_ready: Some(true), .. } => ok(format!("{name} answers on {path}")),
        Socket::Listens { is_ready: Some(false), .. } => note(format!("{name} is starting, or waits for something"))
            .why("devices are served one after the other; a large cache takes minutes")
            .mend(LOG),
        Socket::Listens { is_ready: None, .. } => warning(format!("{name} listens on {path} and does not answer"))
            .why("a daemon that hangs serves nothing; systemd restarts such a daemon after 30 s")
            .mend(LOG),
        Socket::Dead => note(format!("nobody listens on {path}"))
            .why("the daemon died; its devices wait until the next daemon serves them")
            .mend("systemctl start glidefs, which replaces the file; journalctl -u glidefs -n 30 says why the daemon died"),
        Socket::Unknown(error) => for_root(format!("{path}: {error}"))
            .why("whether a daemon runs is not known, and the limits below are those of this command"),
    }
}

fn devices(host: &Host) -> Finding {
    const UNSEEN: &str = "devices may wait for a daemon unseen";
    const DRIVER: &str = "dmesg | grep ublk; the driver has to answer about every device";
    const HELD: &str = "requests of the devices are held by the kernel, and programs on the devices hang; no acknowledged data is lost";
    let survey = match &host.devices {
        Ok(survey) => survey,
        Err(error) => return failure(error).why(UNSEEN).mend(DRIVER),
    };
    let [served, waiting, failing, stopped] =
        [DeviceState::Live, DeviceState::Quiesced, DeviceState::Failing, DeviceState::Dead]
            .map(|state| host.devices(state));
    if !failing.is_empty() {
        return failure(format!("fail every request: {}", listed(&failing)))
            .why("programs on the devices get I/O errors")
            .mend("glidefs export list, then glidefs export detach NAME and glidefs export attach NAME");
    }
    if !waiting.is_empty() {
        let found = format!("wait for a daemon: {}", listed(&waiting));
        return match host.socket {
            Socket::Listens { is_ready: Some(false), .. } => {
                note(found).why(HELD).mend("wait until the daemon is ready")
            }
            Socket::Listens { .. } => warning(format!("wait although a daemon runs: {}", listed(&waiting)))
                .why(HELD)
                .mend(
                    "glidefs export list shows the state of each export, and journalctl -u glidefs the reason; an export that the store \
                     has not confirmed waits for the store",
                ),
            _ => warning(found).why(HELD).mend("systemctl start glidefs"),
        };
    }
    if let Some(error) = survey.errors.first() {
        let found = format!("{} could not be asked, such as: {}", survey.errors.len(), chain(error));
        return if host.is_root { warning(found).mend(DRIVER) } else { for_root(found) }.why(UNSEEN);
    }
    if !stopped.is_empty() {
        return note(format!("made and not started: {}", listed(&stopped)))
            .why("a start that was cut off left the devices; each takes a number and kernel memory")
            .mend("nothing: the next start of the daemon takes or removes the devices of its exports");
    }
    if !served.is_empty() && !matches!(host.socket, Socket::Listens { .. }) {
        let socket = host.config.api.socket.display();
        return note(format!("served by a process that is not at {socket}: {}", listed(&served)))
            .why("a second daemon runs, or the configuration has another [api] socket than the daemon")
            .mend("pgrep -a glidefs; glidefs doctor --config FILE with the file of that daemon");
    }
    ok(format!("{} of this cache are served, {} in all", served.len(), survey.devices.len()))
}

fn listed(names: &[String]) -> String {
    let first = names.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
impl Host {
    /// A host without a daemon or a device, with the default configuration.
    pub fn example() -> Self {
        Self {
            path: "/etc/glidefs/glidefs.toml".into(),
            is_root: true,
            config: Config::default(),
            refused: None,
            socket: Socket::Absent,
            daemon: None,
            devices: Ok(Survey::default()),
            driver: Err("not asked".into()),
            store_id: None,
        }
    }

    /// The same, with a device of our cache that is served.
    pub fn with_served_device() -> Self {
        let device =
            Surveyed { id: crate::router::devices::DeviceId(3), state: DeviceState::Live, is_ours: true };
        Self { devices: Ok(Survey { devices: vec![device], errors: Vec::new() }), ..Self::example() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::super::Verdict::{Failure, Note, Ok, Warning};
    use super::*;
    use crate::router::DeviceError;
    use crate::router::devices::DeviceId;

    const READY: Socket = Socket::Listens { process: Some(7), is_ready: Some(true) };
    const STARTING: Socket = Socket::Listens { process: Some(7), is_ready: Some(false) };
    const SILENT: Socket = Socket::Listens { process: None, is_ready: None };

    fn device(id: u32, state: DeviceState) -> Surveyed {
        Surveyed { id: DeviceId(id), state, is_ours: true }
    }

    fn host(socket: Socket, devices: Vec<Surveyed>) -> Host {
        Host { socket, devices: Result::Ok(Survey { devices, errors: Vec::new() }), ..Host::example() }
    }

    #[test]
    fn a_daemon_that_serves_its_devices_is_well_and_so_is_a_host_without_one() {
        let runs = host(READY, vec![device(0, DeviceState::Live)]);
        for host in [runs, host(Socket::Absent, Vec::new())] {
            let findings = check(&host);
            assert!(findings.iter().all(|finding| finding.verdict == Ok), "{findings:?}");
        }
    }

    #[test]
    fn a_socket_of_a_dead_starting_or_silent_daemon_is_told_apart() {
        let verdict = |socket| daemon(&socket, Path::new("/s")).verdict;
        let unknown = Socket::Unknown("EACCES".into());
        assert_eq!([Socket::Dead, unknown, STARTING, SILENT].map(verdict), [Note, Note, Note, Warning]);
    }

    #[test]
    fn devices_that_wait_or_fail_are_named_with_the_command_that_helps() {
        let waiting = vec![device(3, DeviceState::Quiesced), device(4, DeviceState::Live)];
        let without = devices(&host(Socket::Dead, waiting));
        assert_eq!((without.verdict, without.mend.as_deref()), (Warning, Some("systemctl start glidefs")));
        assert!(without.found.contains("/dev/ublkb3") && !without.found.contains("ublkb4"));
        let failing = devices(&host(Socket::Absent, vec![device(3, DeviceState::Failing)]));
        assert_eq!(failing.verdict, Failure);
        let long = (0..7).map(|id| device(id, DeviceState::Quiesced)).collect();
        let finding = devices(&host(Socket::Absent, long));
        assert!(finding.found.ends_with("/dev/ublkb4 and 2 more"), "{}", finding.found);
    }

    #[test]
    fn beside_a_daemon_nobody_is_told_to_restart_it() {
        for (socket, waits) in [(READY, Warning), (STARTING, Note), (SILENT, Warning)] {
            let waiting = devices(&host(socket, vec![device(3, DeviceState::Quiesced)]));
            assert_eq!(waiting.verdict, waits);
            assert!(!waiting.mend.unwrap().contains("systemctl"));
        }
    }

    #[test]
    fn devices_of_a_start_that_was_cut_off_or_of_another_daemon_are_notes() {
        for state in [DeviceState::Dead, DeviceState::Live] {
            assert_eq!(devices(&host(Socket::Absent, vec![device(3, state)])).verdict, Note);
        }
        let other = Surveyed { is_ours: false, ..device(3, DeviceState::Quiesced) };
        let finding = devices(&host(Socket::Absent, vec![other]));
        assert_eq!((finding.verdict, &*finding.found), (Ok, "0 of this cache are served, 1 in all"));
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_a_failure_and_a_device_that_does_not_a_warning_or_a_note() {
        let silent = Host { devices: Err("no answer".into()), ..Host::example() };
        assert_eq!(devices(&silent).verdict, Failure);
        for (is_root, expected) in [(true, Warning), (false, Note)] {
            let survey = Survey { devices: Vec::new(), errors: vec![DeviceError::NoPermission] };
            let host = Host { devices: Result::Ok(survey), is_root, ..Host::example() };
            assert_eq!(devices(&host).verdict, expected);
        }
    }

    #[test]
    fn a_device_on_which_a_daemon_works_is_not_in_the_same_condition_twice() {
        let first = [
            device(1, DeviceState::Quiesced),
            device(2, DeviceState::Dead),
            device(3, DeviceState::Quiesced),
        ];
        let devices = vec![
            device(1, DeviceState::Live),
            device(2, DeviceState::Quiesced),
            device(3, DeviceState::Quiesced),
        ];
        let both = in_both(&first, Survey { devices, errors: Vec::new() });
        assert_eq!(both.devices, [device(1, DeviceState::Live), device(3, DeviceState::Quiesced)]);
    }

    #[tokio::test]
    async fn a_daemon_that_is_ready_is_told_from_one_that_starts_and_from_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert_eq!(Socket::ask(&path).await, Socket::Absent);
        let listener = UnixListener::bind(&path).unwrap();
        let process = i32::try_from(std::process::id()).ok();
        for (answer, is_ready) in [
            (&b"HTTP/1.1 200 OK\r\n\r\n"[..], Some(true)),
            (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Some(false)),
            (b"", None),
        ] {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.read_exact(&mut [0; QUESTION.len()]).await.unwrap();
                stream.write_all(answer).await.unwrap();
            };
            let (found, ()) = tokio::join!(Socket::ask(&path), serve);
            assert_eq!(found, Socket::Listens { process, is_ready });
        }
        drop(listener);
        assert_eq!(Socket::ask(&path).await, Socket::Dead);
    }

    #[tokio::test]
    async fn a_file_that_is_refused_leaves_the_defaults_to_the_other_checks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("glidefs.toml");
        let refused = async || {
            let (config, refused) = load(&path, None).await;
            assert!(!config.worker_cpus.is_empty());
            file(&Host { refused, ..Host::example() })
        };
        assert!(refused().await.found.contains("glidefs init"));
        fs::write(&path, "[cache]\nsize = \"many\"\n").unwrap();
        let finding = refused().await;
        assert!(finding.verdict == Failure && finding.found.contains("glidefs.toml:2"), "{finding:?}");
    }

    #[tokio::test]
    async fn the_cpus_and_the_environment_are_those_of_the_daemon_that_runs() {
        let daemon = |variables: &[(&str, &str)]| Daemon {
            pid: 7,
            variables: Some(variables.iter().map(|&(key, value)| (key.into(), value.into())).collect()),
            usable: Some(Usable { cpus: vec![0, 1], quota: None }),
            workers: 2,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("glidefs.toml");
        fs::write(&path, "").unwrap();
        let (config, _) = load(&path, Some(&daemon(&[(BOUNCE_MODE_VARIABLE, "yes")]))).await;
        assert!(config.bounce_mode && config.worker_cpus == [0, 1]);
        fs::write(&path, "[workers]\ncpus = \"1-2\"\n").unwrap();
        let (_, refused) = load(&path, Some(&daemon(&[]))).await;
        assert!(chain(&refused.unwrap()).contains("CPU 2 is not one of those"));
    }

    #[tokio::test]
    async fn a_process_is_found_with_its_cpus_and_variables() {
        let own = i32::try_from(std::process::id()).unwrap();
        let daemon = Daemon::find(own).await.unwrap();
        assert!(!daemon.usable.as_ref().unwrap().cpus.is_empty() && !daemon.variables.unwrap().is_empty());
        let found = variables(b"AWS_REGION=eu-1\0EMPTY=\0broken\0KEY=a=b\0BAD=\xff\0");
        let expected = [("AWS_REGION", "eu-1"), ("EMPTY", ""), ("KEY", "a=b")];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(allowed("Name:\tx\nCpus_allowed_list:\t0-1,4\n"), Some(vec![0, 1, 4]));
        assert_eq!(allowed("Name:\tx\n"), None);
    }

    #[test]
    fn files_that_only_root_may_read_are_a_note_to_others() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        for (is_root, expected) in [(true, Failure), (false, Note)] {
            let refused = Some(ConfigError::Read { path: "/c".into(), source: denied() });
            assert_eq!(file(&Host { is_root, refused, ..Host::example() }).verdict, expected);
            let error = TokenError::Read { path: "/t".into(), source: denied() };
            assert_eq!(judge_token(Err(error), is_root).verdict, expected.min(Warning));
        }
    }

    #[test]
    fn a_new_token_is_advised_only_where_there_is_none_and_a_missing_group_is_a_warning() {
        let judge = |error| judge_token(Err(error), true).mend.unwrap();
        assert_eq!(
            judge(TokenError::Exposed { path: "/a token".into(), mode: 0o644 }),
            "chmod 600 '/a token'"
        );
        let read = |kind: io::ErrorKind| judge(TokenError::Read { path: "/t".into(), source: kind.into() });
        assert!(read(io::ErrorKind::NotFound).contains("openssl"));
        assert!(!read(io::ErrorKind::IsADirectory).contains("openssl"));
        let mut host = Host::example();
        host.config.api.group = Some("no-such-group-here".into());
        let findings = configuration(&host);
        assert!(findings[1].mend.as_ref().unwrap().starts_with("groupadd --system no-such"));
        assert_eq!((findings[0].verdict, findings[1].verdict), (Ok, Warning));
    }
}
