//! The two commands against a daemon with files in place of devices.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::support::{ImageBlock, ImageContent};
use crate::api::{AppState, Listeners, Readiness, wire};
use crate::cli::args::exports::ExportCommand;
use crate::cli::args::{Cli, Command, DaemonArgs};
use crate::cli::transfer::carry::Stop;
use crate::cli::transfer::device::DeviceAccess;
use crate::cli::transfer::ends::BLOCK_BYTES;
use crate::cli::transfer::raw_file::RawFile;
use crate::cli::transfer::{dump, import};
use crate::client::Client;
use crate::observe::chain;
use crate::router::Router;
use crate::router::tests::fake::Host;

/// A daemon, a client of the daemon, and a directory with files in place of devices.
struct Daemon {
    host: Host,
    router: Arc<Router>,
    client: Client,
    dir: tempfile::TempDir,
    _stop: watch::Sender<bool>,
}

impl Daemon {
    async fn start() -> Self {
        let host = Host::new();
        let router = host.started().await;
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let listeners = Listeners::bind(None, &socket, None).await.unwrap();
        let state = AppState {
            router: Arc::clone(&router),
            metrics: Arc::new(crate::api::SharedTexts::new(|_| Ok(String::new()), Arc::default())),
            export_histograms: crate::observe::metrics::ExportHistograms::default(),
            stats: Arc::default(),
            daemon: Arc::new(wire::DaemonStatus::default),
            top: Arc::new(crate::api::SharedTexts::new(|_| Ok(String::new()), Arc::default())),
            traces: Arc::default(),
            memory: Arc::new(|| None),
            off_thread: crate::api::OffThread::default(),
            upgrades: Arc::new(crate::api::NoUpgrades),
            ready: Readiness::default(),
            started: std::time::Instant::now(),
        };
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(crate::api::serve(listeners, state, crate::api::Access::default(), stopped));
        let client = DaemonArgs { socket, api: None, token_file: None }.client().unwrap();
        Self { host, router, client, dir, _stop: stop }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Opens the file in place of `device`, and makes the file first if it is missing.
    fn open(&self, device: &Path, access: DeviceAccess) -> io::Result<RawFile> {
        let exports = self.router.list();
        let has_it = |info: &&crate::router::ExportInfo| {
            info.device.is_some_and(|id| id.path() == device.to_str().unwrap())
        };
        let size_bytes = exports.iter().find(has_it).unwrap().size_bytes;
        let path = self.path(device.file_name().unwrap().to_str().unwrap());
        let is_new = !path.exists();
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        if is_new {
            file.set_len(size_bytes).unwrap();
        }
        drop(file);
        let path = self.path(device.file_name().unwrap().to_str().unwrap());
        RawFile::new(File::options().read(true).write(access == DeviceAccess::Write).open(path)?)
    }

    /// Runs a command after replacing DIR by the directory; returns the error text.
    async fn run(&self, line: &str) -> Result<(), String> {
        self.run_with(line, &|device, access| self.open(device, access)).await
    }

    async fn run_with(
        &self,
        line: &str,
        open: &dyn Fn(&Path, DeviceAccess) -> io::Result<RawFile>,
    ) -> Result<(), String> {
        let (_sender, requests) = unbounded_channel();
        self.run_until(line, open, &mut Stop::new(requests)).await
    }

    async fn run_until(
        &self,
        line: &str,
        open: &dyn Fn(&Path, DeviceAccess) -> io::Result<RawFile>,
        stop: &mut Stop,
    ) -> Result<(), String> {
        let line = line.replace("DIR", self.dir.path().to_str().unwrap());
        let done = match Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.command {
            Command::Import(args) => import::import(&self.client, *args, open, stop).await,
            Command::Export { command: ExportCommand::Dump(args) } => {
                dump::dump(&self.client, *args, open, stop).await
            }
            _ => panic!("{line} is no import and no dump"),
        };
        done.map_err(|error| chain(&error))
    }

    fn names(&self) -> Vec<String> {
        self.router.list().iter().map(|info| info.name.to_string()).collect()
    }
}

/// Data, zeroes and a hole, of an odd length.
fn image() -> ImageContent {
    let mut blocks = vec![ImageBlock::Data { seed: 3, at: 17 }; 400];
    blocks.extend([ImageBlock::Hole; 300]);
    blocks.extend([ImageBlock::Zeroes; 20]);
    blocks.extend([ImageBlock::Data { seed: 5, at: 1 }; 3]);
    let length_bytes = (blocks.len() * BLOCK_BYTES) as u64 - 1000;
    ImageContent { blocks, length_bytes }
}

fn padded(content: &ImageContent, bytes: usize) -> Vec<u8> {
    let mut padded = content.bytes();
    padded.resize(bytes, 0);
    padded
}

fn write_image(path: &Path, content: &ImageContent) {
    io::copy(&mut &content.bytes()[..], &mut File::create(path).unwrap()).unwrap();
}

#[tokio::test]
async fn an_image_becomes_an_export_and_comes_back_as_it_was() {
    let daemon = Daemon::start().await;
    let image = image();
    write_image(&daemon.path("x.raw"), &image);
    daemon.run("glidefs import DIR/x.raw --name vm --json").await.unwrap();
    let size = image.bytes().len().next_multiple_of(512);
    assert_eq!(daemon.router.list()[0].size_bytes, size as u64);
    assert!(fs::read(daemon.path("ublkb0")).unwrap() == padded(&image, size));
    daemon.run("glidefs export dump vm DIR/y.raw --json").await.unwrap();
    assert!(fs::read(daemon.path("y.raw")).unwrap() == padded(&image, size));
    assert!(!daemon.path("y.raw.partial").exists());
    let refused = daemon.run("glidefs export dump vm DIR/y.raw").await.unwrap_err();
    assert!(refused.contains("--force"), "{refused}");
    daemon.run("glidefs export dump vm DIR/y.raw --force").await.unwrap();
}

#[tokio::test]
async fn an_export_that_exists_is_changed_only_with_resume_and_becomes_equal_to_the_image() {
    let daemon = Daemon::start().await;
    let image = image();
    write_image(&daemon.path("x.raw"), &image);
    daemon.run("glidefs import DIR/x.raw --name vm --size 4MiB").await.unwrap();
    let device = File::options().write(true).open(daemon.path("ublkb0")).unwrap();
    device.write_all_at(&[9; 5000], 1_000_000).unwrap();
    device.write_all_at(&[9; 5000], 4_100_000).unwrap();
    for line in ["--size 4MiB", "--size 8MiB", ""] {
        let line = format!("glidefs import DIR/x.raw --name vm {line}");
        let refused = daemon.run(line.trim_end()).await.unwrap_err();
        assert!(refused.contains("--resume"), "{refused}");
    }
    assert!(fs::read(daemon.path("ublkb0")).unwrap() != padded(&image, 4 << 20));
    daemon.run("glidefs import DIR/x.raw --name vm --size 4MiB --resume").await.unwrap();
    assert!(fs::read(daemon.path("ublkb0")).unwrap() == padded(&image, 4 << 20));
}

#[tokio::test]
async fn every_reason_not_to_import_is_said_with_what_to_do() {
    let daemon = Daemon::start().await;
    write_image(&daemon.path("x.raw"), &image());
    fs::write(daemon.path("q"), b"QFI\xfb").unwrap();
    daemon.run("glidefs import DIR/x.raw --name vm").await.unwrap();
    for (line, says) in [
        ("DIR/none --name a", "there is no file"),
        ("DIR --name a", "a directory"),
        ("DIR/q --name a", "qemu-img"),
        ("DIR/x.raw --name a --size 512", "larger"),
        ("- --name a", "--size"),
        ("DIR/x.raw --name vm --size 8MiB --resume", "glidefs export resize"),
        ("DIR/q --name vm --force-raw --resume", "--size 2960896"),
        ("DIR/x.raw --name a --queues 0", "1..=128"),
        ("DIR/x.raw --name vm --resume --durability store", "another durability"),
    ] {
        let refused = daemon.run(&format!("glidefs import {line}")).await.unwrap_err();
        assert!(refused.contains(says), "{line}: {refused}");
    }
    assert_eq!(daemon.names(), ["vm"]);
    daemon.run("glidefs import DIR/q --name raw --force-raw").await.unwrap();
    daemon.router.detach("vm").await.unwrap();
    for line in ["import DIR/x.raw --name vm --resume", "export dump vm DIR/y"] {
        let refused = daemon.run(&format!("glidefs {line}")).await.unwrap_err();
        assert!(refused.contains("glidefs export attach vm"), "{refused}");
    }
}

#[tokio::test]
async fn a_device_that_cannot_be_opened_says_why_and_leaves_no_empty_export() {
    use nix::errno::Errno;
    let daemon = Daemon::start().await;
    write_image(&daemon.path("x.raw"), &image());
    for (errno, says) in [
        (Errno::ENOENT, "run this on the daemon's host"),
        (Errno::EACCES, "run this as root"),
        (Errno::EPERM, "run this as root"),
        (Errno::EBUSY, "unmount it"),
        (Errno::EIO, "cannot open"),
    ] {
        let failed = daemon
            .run_with("glidefs import DIR/x.raw --name vm", &|_, _| Err(errno.into()))
            .await
            .unwrap_err();
        assert!(failed.contains(says), "{failed}");
        assert!(daemon.names().is_empty(), "{errno}");
    }
    let other = |_: &Path, _| RawFile::new(File::open("/dev/null").unwrap());
    let failed = daemon.run_with("glidefs import DIR/x.raw --name vm", &other).await.unwrap_err();
    assert!(failed.contains("has 0 bytes"), "{failed}");
}

#[tokio::test]
async fn a_snapshot_is_dumped_by_way_of_a_fork_that_is_gone_afterwards_however_it_ends() {
    let daemon = Daemon::start().await;
    *daemon.host.storage.has_store.lock().unwrap() = true;
    write_image(&daemon.path("x.raw"), &image());
    daemon.run("glidefs import DIR/x.raw --name vm").await.unwrap();
    fs::write(daemon.path("ublkb1"), vec![4; 1 << 20]).unwrap();
    let line = "glidefs export dump vm DIR/y --snapshot monday";
    daemon.run(line).await.unwrap();
    assert_eq!(fs::read(daemon.path("y")).unwrap(), vec![4; 1 << 20]);
    assert_eq!(daemon.names(), ["vm"]);
    fs::remove_file(daemon.path("y")).unwrap();

    let failed =
        daemon.run_with(line, &|_, _| Err(io::ErrorKind::PermissionDenied.into())).await.unwrap_err();
    assert!(failed.contains("run this as root"), "{failed}");
    assert_eq!(daemon.names(), ["vm"]);

    let (sender, requests) = unbounded_channel();
    let ctrl_c = |device: &Path, access| {
        assert_eq!(daemon.names().len(), 2, "the fork is there");
        ask(&sender);
        daemon.open(device, access)
    };
    let stopped = daemon.run_until(line, &ctrl_c, &mut Stop::new(requests)).await.unwrap_err();
    assert!(stopped.contains("--resume") && stopped.contains("stopped"), "{stopped}");
    assert_eq!(daemon.names(), ["vm"]);
    assert!(daemon.path("y.partial").exists() && !daemon.path("y").exists());
    daemon.run(&format!("{line} --resume")).await.unwrap();
    assert_eq!(fs::read(daemon.path("y")).unwrap(), vec![4; 1 << 20]);

    daemon.host.kernel.fault("detach", crate::router::tests::fake::Fault::Fail);
    let left = daemon.run(&format!("{line} --force")).await.unwrap_err();
    assert!(left.contains("glidefs export delete vm-dump-"), "{left}");
}

fn ask(stop: &UnboundedSender<()>) {
    stop.send(()).unwrap();
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
        let client = place.client().unwrap();
        assert_eq!(client.is_local(), is_local, "{api}");
        if is_local {
            continue;
        }
        let Command::Import(args) =
            Cli::try_parse_from(["glidefs", "import", "/x", "--name", "a"]).unwrap().command
        else {
            panic!("not an import")
        };
        let (_sender, requests) = unbounded_channel();
        let open = |_: &Path, _| panic!("nothing is opened");
        let refused = import::import(&client, *args, &open, &mut Stop::new(requests)).await.unwrap_err();
        assert!(refused.to_string().contains("on the daemon's host"), "{refused}");
    }
}
