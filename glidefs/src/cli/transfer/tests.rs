//! The copying loop for any content, and the two commands against a daemon with files in place of devices.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use nix::errno::Errno;
use proptest::prelude::*;
use tokio::sync::watch;

use super::copy::{BLOCK_BYTES, Before, CopyError, Report, Source, copy, has_hole};
use super::{dump_from, import_to, open_image};
use crate::api::{AppState, Listeners, Readiness, wire};
use crate::cli::args::common::{OutputArgs, WaitArgs};
use crate::cli::args::exports::ExportCommand;
use crate::cli::args::{Cli, Command, DaemonArgs};
use crate::cli::error::CliError;
use crate::cli::wait::{DaemonWait, GOES_ON};
use crate::client::Client;
use crate::config::TimeSpan;
use crate::observe::chain;
use crate::router::Router;
use crate::router::tests::fake::Host;

/// Content of whole blocks, but for the last one: `None` for a hole, else the one byte that each block has among zeroes.
#[derive(Clone, Debug)]
struct Image {
    blocks: Vec<Option<u8>>,
    length: usize,
}

impl Image {
    fn bytes(&self, length: usize) -> Vec<u8> {
        let block = |seed: &Option<u8>| {
            let mut bytes = vec![0; BLOCK_BYTES];
            bytes[100] = seed.unwrap_or(0);
            bytes
        };
        let mut bytes: Vec<u8> = self.blocks.iter().flat_map(block).collect();
        bytes.truncate(self.length);
        bytes.resize(length, 0);
        bytes
    }

    fn file(&self) -> File {
        let file = blank(self.length);
        for (number, bytes) in self.bytes(self.length).chunks(BLOCK_BYTES).enumerate() {
            if self.blocks[number].is_some() {
                file.write_all_at(bytes, (number * BLOCK_BYTES) as u64).unwrap();
            }
        }
        file
    }
}

fn image() -> impl Strategy<Value = Image> {
    let seed = prop_oneof![Just(None), Just(Some(0)), (1..3_u8).prop_map(Some)];
    let runs = prop::collection::vec((seed, 1..6_usize), 1..6);
    (runs, 0..BLOCK_BYTES).prop_map(|(runs, short)| {
        let blocks: Vec<_> = runs.into_iter().flat_map(|(seed, count)| vec![seed; count]).collect();
        Image { length: blocks.len() * BLOCK_BYTES - short, blocks }
    })
}

fn blank(length: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(length as u64).unwrap();
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn run(source: &mut Source, target: &File, length: usize, before: Before) -> Result<Report, CopyError> {
    let mut target = target.try_clone().unwrap();
    let report = copy(source, &mut target, length as u64, before, &AtomicBool::new(false), |_| ())?;
    let sum = report.copied_bytes + report.zero_bytes + report.equal_bytes + report.zeroed_bytes;
    assert_eq!(sum, length as u64);
    Ok(report)
}

/// A pipe with these bytes in it.
fn pipe(bytes: Vec<u8>) -> Source {
    let (reader, mut writer) = io::pipe().unwrap();
    std::thread::spawn(move || writer.write_all(&bytes));
    Source::of_pipe(File::from(std::os::fd::OwnedFd::from(reader)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_new_target_equals_the_source_and_has_holes_where_it_is_zero(
        image in image(), more in prop_oneof![Just(0), 1..20_000_usize], is_pipe in any::<bool>(),
    ) {
        let length = image.length + more;
        let target = blank(length);
        let mut source =
            if is_pipe { pipe(image.bytes(image.length)) } else { Source::of_file(image.file()).unwrap() };
        let report = run(&mut source, &target, length, Before::Zeroes).unwrap();
        let found = content(&target);
        prop_assert!(found == image.bytes(length));
        prop_assert_eq!(report.equal_bytes + report.zeroed_bytes, 0);
        for (number, block) in found.chunks(BLOCK_BYTES).enumerate().filter(|(_, block)| block.iter().all(|&b| b == 0)) {
            let start = (number * BLOCK_BYTES) as u64;
            prop_assert!(has_hole(&target, start, start + block.len() as u64), "block {} of zeroes is no hole", number);
        }
    }

    #[test]
    fn what_a_target_holds_already_is_not_written_again(image in image(), old in image(), more in 0..20_000_usize) {
        let length = image.length + more;
        let target = old.file();
        target.set_len(length as u64).unwrap();
        let there = content(&target);
        let report = run(&mut Source::of_file(image.file()).unwrap(), &target, length, Before::Something).unwrap();
        let wanted = image.bytes(length);
        prop_assert!(content(&target) == wanted);
        let differing = |(wanted, there): (&[u8], &[u8])| if wanted == there { 0 } else { wanted.len() as u64 };
        let differing: u64 = wanted.chunks(BLOCK_BYTES).zip(there.chunks(BLOCK_BYTES)).map(differing).sum();
        prop_assert_eq!(report.copied_bytes + report.zeroed_bytes, differing);
        let again = run(&mut Source::of_file(image.file()).unwrap(), &target, length, Before::Something).unwrap();
        prop_assert_eq!(again.copied_bytes + again.zeroed_bytes, 0);
    }

    #[test]
    fn a_pipe_gets_every_byte_in_order(image in image(), more in 0..20_000_usize) {
        let length = image.length + more;
        let target = blank(0);
        run(&mut Source::of_file(image.file()).unwrap(), &target, length, Before::Stream).unwrap();
        prop_assert!(content(&target) == image.bytes(length));
    }
}

#[test]
fn a_source_that_changes_its_length_is_an_error_and_so_is_a_pipe_that_is_too_long() {
    let image = Image { blocks: vec![Some(1); 64], length: 64 * BLOCK_BYTES };
    for blocks in [44, 63, 65] {
        let file = image.file();
        let mut source = Source::of_file(file.try_clone().unwrap()).unwrap();
        file.set_len(blocks * BLOCK_BYTES as u64).unwrap();
        let failed = run(&mut source, &blank(image.length), image.length, Before::Zeroes).unwrap_err();
        assert!(matches!(failed, CopyError::Changed { .. }), "{blocks}: {failed}");
    }
    for more in [0, 1, BLOCK_BYTES] {
        let copied = run(&mut pipe(vec![1; 8192 + more]), &blank(8192), 8192, Before::Zeroes);
        assert_eq!(matches!(copied, Err(CopyError::TooLong { .. })), more > 0, "{copied:?}");
        assert_eq!(copied.is_ok(), more == 0);
    }
}

#[test]
fn a_write_that_fails_says_where_and_a_stop_ends_the_copy() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let image = Image { blocks: vec![None, Some(1)], length: 2 * BLOCK_BYTES };
    let failed =
        run(&mut Source::of_file(image.file()).unwrap(), &full, image.length, Before::Zeroes).unwrap_err();
    assert!(chain(&failed).contains("cannot write at byte 4096: No space left"), "{}", chain(&failed));
    let mut source = Source::of_file(image.file()).unwrap();
    let stopped = copy(&mut source, &mut blank(0), 8192, Before::Zeroes, &AtomicBool::new(true), |_| ());
    assert!(matches!(stopped, Err(CopyError::Stopped)));
}

/// A daemon, a client of it, and a directory with files in place of devices.
struct Daemon {
    host: Host,
    router: Arc<Router>,
    client: Client,
    dir: tempfile::TempDir,
    stop_copy: Arc<AtomicBool>,
    _stop: watch::Sender<bool>,
}

impl Daemon {
    async fn start() -> Self {
        let host = Host::new();
        let router = host.started().await;
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let listeners =
            Listeners::open(None, &socket, None, &crate::observe::troubles::Troubles::default()).await;
        let state = AppState {
            router: Arc::clone(&router),
            metrics: Arc::new(crate::api::SharedTexts::new(|_| Ok(String::new()), Arc::default())),
            export_histograms: crate::observe::metrics::ExportHistograms::default(),
            stats: Arc::default(),
            daemon: Arc::new(|| {
                let (url, state) = ("s3://b".into(), wire::Condition::Silent);
                let error = Some("no route".into());
                let store = Some(wire::StoreState { url, state, since_seconds: 9, error });
                wire::DaemonStatus { store, ..wire::DaemonStatus::default() }
            }),
            store: Arc::new(|| None),
            top: Arc::new(crate::api::SharedTexts::new(|_| Ok(String::new()), Arc::default())),
            traces: Arc::default(),
            memory: Arc::new(|| None),
            off_thread: crate::api::OffThread::default(),
            upgrades: None,
            ready: Readiness::default(),
            started: std::time::Instant::now(),
        };
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(crate::api::serve(listeners, state, crate::api::Access::default(), stopped));
        let client = DaemonArgs { socket, api: None, token_file: None }.client().unwrap();
        Self { host, router, client, dir, stop_copy: Arc::default(), _stop: stop }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Opens the file in place of `device`, and makes it first if it is missing.
    fn open(&self, device: &Path, writes: bool) -> io::Result<File> {
        let exports = self.router.list();
        let has_it = |info: &&crate::router::ExportInfo| {
            info.device.is_some_and(|id| id.path() == device.to_str().unwrap())
        };
        let size_bytes = exports.iter().find(has_it).unwrap().size_bytes;
        let path = self.path(device.file_name().unwrap().to_str().unwrap());
        if !path.exists() {
            File::create(&path).unwrap().set_len(size_bytes).unwrap();
        }
        File::options().read(true).write(writes).open(path)
    }

    /// Runs a command after replacing DIR by the directory; returns the error text.
    async fn run(&self, line: &str) -> Result<(), String> {
        self.run_with(line, &|device, writes| self.open(device, writes)).await
    }

    async fn run_with(
        &self,
        line: &str,
        open: &dyn Fn(&Path, bool) -> io::Result<File>,
    ) -> Result<(), String> {
        let line = line.replace("DIR", self.dir.path().to_str().unwrap());
        let done = match Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.command {
            Command::Import(args) => import_to(&self.client, *args, open).await,
            Command::Export { command: ExportCommand::Dump(args), wait } => {
                dump_from(&self.client, *args, wait.output, open, &self.stop_copy).await
            }
            _ => panic!("{line} is no import and no dump"),
        };
        done.map_err(|error| chain(&error))
    }

    fn names(&self) -> Vec<String> {
        self.router.list().iter().map(|info| info.name.to_string()).collect()
    }

    /// Writes x.raw, of an odd length, with data, a hole and zeroes.
    fn write_image(&self) -> Image {
        let mut blocks = vec![Some(17); 400];
        blocks.extend([None; 300]);
        blocks.extend([Some(0); 20]);
        blocks.extend([Some(1); 3]);
        let image = Image { length: blocks.len() * BLOCK_BYTES - 1000, blocks };
        io::copy(&mut &image.bytes(image.length)[..], &mut File::create(self.path("x.raw")).unwrap())
            .unwrap();
        image
    }
}

#[tokio::test]
async fn an_image_becomes_an_export_and_comes_back_as_it_was() {
    let daemon = Daemon::start().await;
    let image = daemon.write_image();
    daemon.run("glidefs import DIR/x.raw --name vm --json").await.unwrap();
    let size = image.length.next_multiple_of(512);
    assert_eq!(daemon.router.list()[0].size_bytes, size as u64);
    assert!(fs::read(daemon.path("ublkb0")).unwrap() == image.bytes(size));
    daemon.run("glidefs export dump vm DIR/y.raw --json").await.unwrap();
    assert!(fs::read(daemon.path("y.raw")).unwrap() == image.bytes(size));
    assert!(!daemon.path("y.raw.partial").exists());
    let refused = daemon.run("glidefs export dump vm DIR/y.raw").await.unwrap_err();
    assert!(refused.contains("--force"), "{refused}");
    daemon.run("glidefs export dump vm DIR/y.raw --force").await.unwrap();
}

#[tokio::test]
async fn an_export_that_exists_is_changed_only_with_resume_and_becomes_equal_to_the_image() {
    let daemon = Daemon::start().await;
    let image = daemon.write_image();
    daemon.run("glidefs import DIR/x.raw --name vm --size 4MiB").await.unwrap();
    let device = File::options().write(true).open(daemon.path("ublkb0")).unwrap();
    device.write_all_at(&[9; 5000], 1_000_000).unwrap();
    device.write_all_at(&[9; 5000], 4_100_000).unwrap();
    for line in [" --size 4MiB", " --size 8MiB", ""] {
        let refused = daemon.run(&format!("glidefs import DIR/x.raw --name vm{line}")).await.unwrap_err();
        assert!(refused.contains("--resume"), "{refused}");
    }
    assert!(fs::read(daemon.path("ublkb0")).unwrap() != image.bytes(4 << 20));
    daemon.run("glidefs import DIR/x.raw --name vm --size 4MiB --resume").await.unwrap();
    assert!(fs::read(daemon.path("ublkb0")).unwrap() == image.bytes(4 << 20));
}

#[tokio::test]
async fn every_reason_not_to_import_is_said_with_what_to_do() {
    let daemon = Daemon::start().await;
    daemon.write_image();
    for (name, bytes) in [("q", &b"QFI\xfb\0"[..]), ("z", b"\x28\xb5\x2f\xfd more"), ("empty", b"")] {
        fs::write(daemon.path(name), bytes).unwrap();
    }
    nix::unistd::mkfifo(&daemon.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    daemon.run("glidefs import DIR/x.raw --name vm").await.unwrap();
    for (line, says) in [
        ("DIR/none --name a", "No such file"),
        ("DIR --name a", "a directory"),
        ("DIR/fifo --name a", "`-`"),
        ("DIR/empty --name a", "is empty"),
        ("DIR/q --name a", "qemu-img convert -O raw"),
        ("DIR/z --name a", "zstd -dc"),
        ("DIR/x.raw --name a --size 512", "larger"),
        ("- --name a", "--size"),
        ("DIR/x.raw --name vm --size 8MiB --resume", "resize"),
        ("DIR/x.raw --name a --queues 0", "1..=128"),
        ("DIR/x.raw --name vm --resume --durability store", "(durability)"),
    ] {
        let refused = daemon.run(&format!("glidefs import {line}")).await.unwrap_err();
        assert!(refused.contains(says), "{line}: {refused}");
    }
    assert_eq!(daemon.names(), ["vm"]);
    daemon.router.detach("vm", crate::router::Users::Spare).await.unwrap();
    for line in ["import DIR/x.raw --name vm --resume", "export dump vm DIR/y"] {
        let refused = daemon.run(&format!("glidefs {line}")).await.unwrap_err();
        assert!(refused.contains("glidefs export attach vm"), "{refused}");
    }
}

#[test]
fn what_a_disk_may_begin_with_is_raw() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut boot_sector = [0; 512];
    boot_sector[510..].copy_from_slice(&[0x55, 0xaa]);
    for head in [&[0; 512][..], &boot_sector, b"LUKS\xba\xbe\0\x02", b"XFSB\0\0\x10\0", b"LABELONE", b"x"] {
        fs::write(&path, head).unwrap();
        assert_eq!(open_image(&path).unwrap().length_bytes, Some(head.len() as u64));
    }
}

#[tokio::test]
async fn a_device_that_cannot_be_opened_says_why_and_leaves_no_empty_export() {
    let daemon = Daemon::start().await;
    daemon.write_image();
    for (errno, says) in [
        (Errno::ENOENT, "run this on the daemon's host"),
        (Errno::EPERM, "run this as root"),
        (Errno::EBUSY, "unmount it"),
        (Errno::EIO, "cannot open"),
    ] {
        let failed = daemon.run_with("glidefs import DIR/x.raw --name vm", &|_, _| Err(errno.into())).await;
        assert!(failed.as_ref().unwrap_err().contains(says), "{failed:?}");
        assert!(daemon.names().is_empty(), "{errno}");
    }
    let other = |_: &Path, _| File::open("/dev/null");
    let failed = daemon.run_with("glidefs import DIR/x.raw --name vm", &other).await.unwrap_err();
    assert!(failed.contains("has 0 bytes"), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_to_a_device_that_another_export_may_have_by_now() {
    let daemon = Daemon::start().await;
    daemon.write_image();
    let open = |device: &Path, writes| {
        let opened = daemon.open(device, writes);
        let detached = daemon.router.detach("vm", crate::router::Users::Spare);
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(detached)).unwrap();
        opened
    };
    let failed = daemon.run_with("glidefs import DIR/x.raw --name vm", &open).await.unwrap_err();
    assert!(failed.contains("is not the device of export vm any more"), "{failed}");
    assert!(fs::read(daemon.path("ublkb0")).unwrap().iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_snapshot_is_dumped_by_way_of_a_fork_that_is_gone_afterwards_however_it_ends() {
    let daemon = Daemon::start().await;
    *daemon.host.storage.has_store.lock().unwrap() = true;
    daemon.write_image();
    let long = "x".repeat(crate::router::NAME_CHARS_MAX);
    daemon.run(&format!("glidefs import DIR/x.raw --name {long}")).await.unwrap();
    fs::write(daemon.path("ublkb1"), vec![4; 1 << 20]).unwrap();
    let line = format!("glidefs export dump {long} DIR/y --snapshot monday");
    daemon.run(&line).await.unwrap();
    assert_eq!(fs::read(daemon.path("y")).unwrap(), vec![4; 1 << 20]);
    assert_eq!(daemon.names(), [long.as_str()]);
    fs::remove_file(daemon.path("y")).unwrap();

    let failed =
        daemon.run_with(&line, &|_, _| Err(io::ErrorKind::PermissionDenied.into())).await.unwrap_err();
    assert!(failed.contains("cannot open"), "{failed}");
    assert_eq!(daemon.names(), [long.as_str()]);

    let ctrl_c = |device: &Path, writes| {
        assert_eq!(daemon.names().len(), 2, "the fork is there");
        daemon.stop_copy.store(true, Ordering::Relaxed);
        daemon.open(device, writes)
    };
    let stopped = daemon.run_with(&line, &ctrl_c).await.unwrap_err();
    assert!(stopped.contains("--resume") && stopped.contains("stopped"), "{stopped}");
    assert_eq!(daemon.names(), [long.as_str()]);
    assert!(daemon.path("y.partial").exists() && !daemon.path("y").exists());
    daemon.stop_copy.store(false, Ordering::Relaxed);
    let refused = daemon.run(&line).await.unwrap_err();
    assert!(refused.contains("--resume") && refused.contains("--force"), "{refused}");
    daemon.run(&format!("{line} --resume")).await.unwrap();
    assert_eq!(fs::read(daemon.path("y")).unwrap(), vec![4; 1 << 20]);

    daemon.host.kernel.fault("detach", crate::router::tests::fake::Fault::Fail);
    let left = daemon.run(&format!("{line} --force")).await.unwrap_err();
    assert!(left.contains("glidefs export delete x") && left.contains("-dump-"), "{left}");
}

#[tokio::test]
async fn two_dumps_never_write_the_same_file_and_a_file_that_appears_meanwhile_stays() {
    let daemon = Daemon::start().await;
    daemon.write_image();
    daemon.run("glidefs import DIR/x.raw --name vm").await.unwrap();
    let partial = File::create(daemon.path("y.partial")).unwrap();
    partial.lock().unwrap();
    let refused = daemon.run("glidefs export dump vm DIR/y --force").await.unwrap_err();
    assert!(refused.contains("another dump"), "{refused}");
    drop(partial);
    fs::remove_file(daemon.path("y.partial")).unwrap();
    fs::write(daemon.path("theirs"), "theirs").unwrap();
    std::os::unix::fs::symlink(daemon.path("theirs"), daemon.path("y.partial")).unwrap();
    let refused = daemon.run("glidefs export dump vm DIR/y --resume").await.unwrap_err();
    assert!(refused.contains("is a link"), "{refused}");
    daemon.run("glidefs export dump vm DIR/y --force").await.unwrap();
    assert!(fs::symlink_metadata(daemon.path("y")).unwrap().is_file());
    assert_eq!(fs::read(daemon.path("theirs")).unwrap(), b"theirs");
    fs::remove_file(daemon.path("y")).unwrap();
    let appears = |device: &Path, writes| {
        fs::write(daemon.path("y"), "theirs").unwrap();
        daemon.open(device, writes)
    };
    let refused = daemon.run_with("glidefs export dump vm DIR/y --resume", &appears).await.unwrap_err();
    assert!(refused.contains("exists"), "{refused}");
    assert_eq!(fs::read(daemon.path("y")).unwrap(), b"theirs");
    for path in ["/dev/null", "DIR"] {
        let refused = daemon.run(&format!("glidefs export dump vm {path} --force")).await.unwrap_err();
        assert!(refused.contains("is not a file"), "{refused}");
    }
}

#[tokio::test]
async fn a_daemon_that_may_be_elsewhere_is_not_asked() {
    for (api, is_local) in [
        ("http://127.0.0.1:9470", true),
        ("http://[::1]:9470", true),
        ("http://localhost", true),
        ("http://10.0.0.5:9470", false),
        ("http://example.org", false),
    ] {
        let place = DaemonArgs { socket: "/x".into(), api: Some(api.into()), token_file: None };
        assert_eq!(super::check_local(&place.client().unwrap()).is_ok(), is_local, "{api}");
    }
}

#[tokio::test]
async fn a_wait_for_the_store_says_what_the_store_does() {
    let daemon = Daemon::start().await;
    let timeout = Some(TimeSpan(Duration::from_millis(1)));
    let mut wait = DaemonWait::new(WaitArgs { timeout, output: OutputArgs { json: true } });
    let never = std::future::pending::<Result<(), CliError>>();
    let ended = wait.for_daemon(&daemon.client, never, GOES_ON).await.unwrap_err();
    let says = "; store s3://b: silent for 9 s: no route); the daemon goes on";
    assert!(ended.to_string().contains(says), "{ended}");
}
