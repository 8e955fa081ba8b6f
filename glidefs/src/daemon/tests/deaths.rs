//! A daemon that dies of one export.
//!
//! In the first test each daemon is a process, a child of the test which runs the test anew, with its own hook for panics, start and
//! worker, on a cache on a real directory.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::host::{Host, World, request};
use super::loss::{blank, held, write};
use super::sim::faults::Crash;
use crate::cache::{Cache, Directory, Known, MonotonicClock};
use crate::daemon::storage::DaemonStorage;
use crate::export::{Export, Operation};
use crate::router::{
    Catalog, Deaths, DeviceError, DeviceId, DeviceOptions, Devices, ExportSize, FoundDevice, InitialContent,
    Router, RouterOptions, State, Tenures,
};
use crate::units::{ExportId, SectorRange};
use crate::worker::engine::Engine;
use crate::worker::tests::{Bench, Client, worker_options};
use crate::worker::{Worker, start};

const DIRECTORY: &str = "GLIDEFS_TEST_OF_DEATHS";
const WISH: &str = "GLIDEFS_TEST_OF_DEATHS_WISH";
const NAME: &str = "daemon::tests::deaths::a_daemon_that_dies_of_the_first_write_of_an_export_serves_the_others_the_third_time";

/// Devices that get a WRITE at once. That of the export "bad" ends in a panic of the worker.
struct Pipes {
    worker: Worker,
    clients: Mutex<Vec<Client>>,
}

#[async_trait]
impl Devices for Pipes {
    async fn attach(
        &self,
        export: Arc<Export>,
        _: DeviceOptions,
        _: Option<DeviceId>,
    ) -> Result<DeviceId, DeviceError> {
        let client = Client::attach_with(&self.worker, &export, |mut queue, _| {
            queue.panics = export.name() == "bad";
            Box::new(queue)
        });
        let mut client = client.await.unwrap();
        client.start(0, Operation::Write, 0, 8, vec![1; 4096]);
        self.clients.lock().unwrap().push(client);
        Ok(DeviceId(export.id().0))
    }

    async fn find(&self, _: &Export, _: DeviceId) -> Result<Option<FoundDevice>, DeviceError> {
        Ok(None)
    }

    async fn recover(&self, _: Arc<Export>, _: DeviceId) -> Result<(), DeviceError> {
        unreachable!("no device is found")
    }

    async fn detach(&self, _: ExportId, _: DeviceId) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn resize(&self, _: &Export, _: DeviceId) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Runs a daemon until every WRITE of its devices is answered, and prints the exports.
fn daemon(directory: &Path, wish: &str) {
    let catalog = Catalog::open(&directory.join("catalog.redb")).unwrap();
    let known = Known {
        exports: catalog.known(),
        next_export: Some(ExportId(catalog.next_export_id())),
        catalog: Arc::new(catalog.handle()),
    };
    let disk = Arc::new(Directory::new(directory));
    // The kernel may still be at work for the daemon before.
    while Cache::check_free(&*disk).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (cache, _) = Cache::open(disk, Arc::new(MonotonicClock::default()), Bench::options(), known).unwrap();
    let mut keeper = cache.keeper();
    std::thread::spawn(move || keeper.run(&std::sync::atomic::AtomicBool::new(false)));
    let worker = start(&cache, &worker_options(Engine::default(), 4)).unwrap().remove(0);
    let pipes = Arc::new(Pipes { worker, clients: Mutex::default() });
    let options = RouterOptions {
        exports_max: 8,
        queue_depth_default: 8,
        parallel_max: 8,
        confirm_patience: Duration::from_secs(1),
        serve_unconfirmed: false,
        waiting_since: None,
        tenures: Tenures::default(),
        deaths: Deaths::watch(directory),
        boot_id: "a boot".into(),
    };
    let devices = Arc::clone(&pipes) as Arc<dyn Devices>;
    let router = Router::new(catalog, devices, Arc::new(DaemonStorage::new(cache, None)), options);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        router.start().await;
        match wish {
            "create" => {
                for name in ["good", "bad"] {
                    let blank = InitialContent::Blank(ExportSize::new(1 << 20).unwrap());
                    router.create(request(name, blank)).await.unwrap();
                }
            }
            "attach" => {
                router.end_hold("bad").await;
                drop(router.attach("bad", true).await.unwrap());
            }
            _ => {}
        }
    });
    for client in &*pipes.clients.lock().unwrap() {
        client.finish(0).0.unwrap();
    }
    for info in router.list() {
        let is_served = info.state == State::Serving;
        println!("{} is served: {is_served}. {}", info.name, info.state.reason().unwrap_or_default());
    }
    std::process::exit(0);
}

fn child(directory: &Path, wish: &str) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([NAME, "--exact", "--nocapture"]).env(DIRECTORY, directory).env(WISH, wish);
    child.output().unwrap()
}

#[test]
fn a_daemon_that_dies_of_the_first_write_of_an_export_serves_the_others_the_third_time() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return daemon(Path::new(&directory), &std::env::var(WISH).unwrap());
    }
    let directory = tempfile::tempdir().unwrap();
    let dies = |wish| {
        let died = child(directory.path(), wish);
        assert_eq!(died.status.signal(), Some(libc::SIGABRT), "{wish}: {died:?}");
    };
    let serves_the_others = || {
        let lives = child(directory.path(), "start");
        let said = String::from_utf8_lossy(&lives.stdout);
        assert!(lives.status.success() && said.contains("good is served: true"), "{lives:?}");
        assert!(said.contains("bad is served: false") && said.contains("a planted panic"), "{said}");
    };
    dies("create");
    dies("start");
    serves_the_others();
    serves_the_others();
    dies("attach");
    serves_the_others();
}

/// Returns when everything of an export is in the store.
fn is_written_back(host: &Host, export: &str) {
    let volume = host.volume(export);
    let deadline = Instant::now() + Duration::from_secs(30);
    while volume.figures().dirty_bytes > 0 {
        assert!(Instant::now() < deadline, "{export} is not written back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A host with data at risk of two exports, one of which, `vm`, is held back.
fn holds_back(world: &World) -> Host {
    let mut host = Host::new(world);
    for create in [request("other", blank().content), blank()] {
        world.runtime.block_on(host.router().create(create)).unwrap();
    }
    world.store_goes_away();
    write(&mut host, 1);
    let (volume, range) = (host.volume("other"), SectorRange::new(0, 8).unwrap());
    host.driver().write(&volume, range, Some(&[1; 4096])).unwrap();
    host.died_of(host.router().show("vm").unwrap().id);
    host.go_down(Crash::Kill);
    world.store_comes_back();
    host.come_up(world);
    assert!(matches!(host.router().show("vm").unwrap().state, State::Failed { .. }));
    is_written_back(&host, "other");
    assert_eq!(host.volume("vm").figures().dirty_bytes, 4096);
    host
}

#[test]
fn an_export_that_is_held_back_is_written_back_only_when_asked_for_or_attached() {
    for attached in [true, false] {
        let world = World::new(56, 0);
        let mut host = holds_back(&world);
        if attached {
            world.runtime.block_on(host.router().end_hold("vm"));
            world.runtime.block_on(host.router().attach("vm", true)).unwrap();
            assert_eq!(host.router().show("vm").unwrap().state, State::Serving);
        } else {
            world.runtime.block_on(host.router().write_back("vm")).unwrap();
        }
        is_written_back(&host, "vm");
        assert_eq!(held(&mut host, "vm"), [1]);
    }
}
