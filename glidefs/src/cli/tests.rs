//! The command line as typed.

use clap::{CommandFactory, Parser};

use super::args::bulk::Chosen;
use super::args::common::{DeviceArgs, OutputArgs, WaitArgs};
use super::args::exports::ExportCommand;
use super::args::{Cli, Command, DaemonArgs};
use super::commands::{bulk, daemon, exports, files, upgrade};
use super::dispatch;
use super::error::CliError;
use crate::api::wire;
use crate::client::{Client, ClientError};
use crate::handover::{Handed, Identity};
use crate::router::ExportName;

/// Waits as long as it takes, and prints text.
const TEXT: WaitArgs = WaitArgs { timeout: None, output: OutputArgs { json: false } };

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn the_arguments_do_not_contradict_each_other() {
    Cli::command().debug_assert();
}

#[test]
fn what_is_not_understood_exits_with_two_and_says_why() {
    for (line, says) in [
        ("glidefs export create a", "--size"),
        ("glidefs export create a/b --size 1GiB", "'/'"),
        ("glidefs export create .. --size 1GiB", "begin with"),
        ("glidefs export create a --size 0", "size of 0"),
        ("glidefs export create a --size 511", "multiple of 512"),
        ("glidefs export create a --size 9223372036854775808", "too large"),
        ("glidefs export create a --size 1GB", "GiB"),
        ("glidefs export create a --size 1GiB --count 0", "1..=100000"),
        ("glidefs export create a --size 1GiB --queues 0", "1..=128"),
        ("glidefs export create a --size 1GiB --queue-depth 5000", "1..=4096"),
        ("glidefs export set a", "--read-iops"),
        ("glidefs export set a --durability lokal", "bounded"),
        ("glidefs export set a --read-iops many", "or none"),
        ("glidefs export set a --write-bps 1MB", "MiB"),
        ("glidefs export set a --burst 5", "such as 10s"),
        ("glidefs export create a --size 1GiB --weight 1001", "1..=1000"),
        ("glidefs status --token-file x", "--api"),
        ("glidefs nonsense", "unrecognized"),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(says), "{line}: {error}");
    }
}

#[test]
fn json_is_asked_for_anywhere_before_the_end_of_the_options() {
    let is_json = |line: &str| super::is_json(line.split(' ').map(Into::into));
    assert!(is_json("glidefs export show a --json") && is_json("glidefs --json nonsense"));
    assert!(!is_json("glidefs export show a") && !is_json("glidefs export show -- --json"));
}

#[test]
fn several_exports_are_made_or_deleted_at_once() {
    for line in ["glidefs export create a b c --size 1GiB", "glidefs export delete a b c"] {
        let Command::Export {
            command: ExportCommand::Create { names, .. } | ExportCommand::Delete { names, .. },
            ..
        } = parse(line).unwrap().command
        else {
            panic!("{line}")
        };
        assert_eq!(names.names.len(), 3, "{line}");
    }
}

#[test]
fn the_doctor_needs_no_option_and_takes_another_configuration() {
    assert!(matches!(parse("glidefs doctor").unwrap().command, Command::Doctor { json: false, .. }));
    let Command::Doctor { config, json } = parse("glidefs doctor --config x.toml --json").unwrap().command
    else {
        panic!("it is the doctor")
    };
    assert!(json && config == std::path::Path::new("x.toml"));
}

#[test]
fn waits_may_be_limited() {
    for line in [
        "export flush a b --timeout 10s",
        "export create a --size 1GiB --timeout 10s",
        "export --timeout 10s list --store",
        "snapshot list a --timeout 10s",
        "drain --timeout 2min",
        "gc --timeout 2min",
        "snapshot create a s --timeout 1h",
    ] {
        assert!(parse(&format!("glidefs {line}")).is_ok(), "{line}");
    }
    assert!(parse("glidefs export flush a --no-wait --timeout 1s").is_err());
}

#[test]
fn sizes_take_units_and_options_may_stand_anywhere() {
    let cli = parse("glidefs export --socket /x create a --json --size 10GiB").unwrap();
    assert_eq!(cli.daemon.socket.to_str(), Some("/x"));
    let Command::Export {
        command: ExportCommand::Create { names, size, device: DeviceArgs { queues: None, .. }, .. },
        wait,
    } = cli.command
    else {
        panic!("not a create")
    };
    let chosen = Chosen { names: vec![ExportName::new("a").unwrap()], is_one: true };
    assert_eq!(names.choose(std::io::empty()).unwrap(), chosen);
    assert_eq!((size.bytes(), wait.output.json), (10 << 30, true));
}

#[test]
fn every_command_explains_itself() {
    fn walk(command: &clap::Command) {
        assert!(command.get_about().is_some(), "{} has no help", command.get_name());
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{} of {} has no help",
                argument.get_id(),
                command.get_name()
            );
        }
        command.get_subcommands().for_each(walk);
    }
    walk(&Cli::command());
}

#[test]
fn init_never_replaces_a_file_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/glidefs.toml");
    files::init(&path, false).unwrap();
    std::fs::write(&path, "mine").unwrap();
    assert!(matches!(files::init(&path, false), Err(CliError::Refused(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    files::init(&path, true).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), crate::config::keys::commented_config());
}

#[test]
fn run_hands_the_checked_configuration_to_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("glidefs.toml");
    std::fs::write(&path, "[cache]\nsize = \"1MiB\"\n").unwrap();
    let run = || parse(&format!("glidefs run --remove-devices --config {}", path.display())).unwrap();
    let refused = dispatch(run(), no_start, no_daemon);
    assert!(matches!(refused, Err(CliError::Config(_))));
    std::fs::write(&path, "[cache]\nsize = \"10GiB\"\n[workers]\ncount = 1\n").unwrap();
    let mut seen = None;
    let look = |config: &crate::config::Config, handed: Option<Handed>| {
        seen = Some((config.clone(), handed.is_none()));
        Ok(())
    };
    dispatch(run(), look, no_daemon).unwrap();
    let (config, is_alone) = seen.unwrap();
    assert!(is_alone);
    assert!(config.source.contains("10GiB"), "the text is kept for the way back");
    assert_eq!(config.worker_cpus.len(), 1);
    assert_eq!(config.control.on_stop, crate::config::OnStop::Remove);
}

#[test]
fn run_with_check_refuses_what_a_start_would_refuse_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("glidefs.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let cli = parse(&format!("glidefs run --check --config {}", path.display())).unwrap();
        dispatch(cli, no_start, |_| Err(CliError::Refused(String::new())))
    };
    let valid = "[cache]\nsize = \"10GiB\"\n[workers]\ncount = 1\n";
    assert!(matches!(check("[cache]\nsize = \"1MiB\"\n"), Err(CliError::Config(_))));
    assert!(matches!(check(&format!("{valid}[log]\nfilter = \"a=b=c\"\n")), Err(CliError::Config(_))));
    assert!(matches!(check(valid), Err(CliError::Refused(_))), "the daemon's own check");
}

/// Stands for the daemon in commands that start none.
fn no_daemon(_: &crate::config::Config) -> Result<Identity, CliError> {
    panic!("the daemon must not start")
}

fn no_start(config: &crate::config::Config, _handed: Option<Handed>) -> Result<(), CliError> {
    no_daemon(config).map(drop)
}

fn client(socket: &std::path::Path, api: Option<&str>) -> Result<Client, ClientError> {
    DaemonArgs { socket: socket.into(), api: api.map(Into::into), token_file: None }.client()
}

#[tokio::test]
async fn a_daemon_that_does_not_run_is_said_in_one_sentence_with_how_to_start_it() {
    let dir = tempfile::tempdir().unwrap();
    for api in [None, Some("http://127.0.0.1:1")] {
        let client = client(&dir.path().join("none"), api).unwrap();
        let error = client.get::<wire::Status>("/v1/status").await.unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, ClientError::NotRunning { .. }), "{message}");
        assert!(message.contains("systemctl start glidefs") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn an_address_that_is_none_is_refused() {
    for url in ["", "127.0.0.1:9470", "https://x:1", "http://", "http://a@b:1", "http://x:1/path", "ftp://x"]
    {
        let refused = client(std::path::Path::new("/x"), Some(url)).unwrap_err();
        assert!(matches!(refused, ClientError::Url { .. }), "{url}");
    }
}

#[tokio::test]
async fn what_answers_otherwise_than_a_daemon_is_not_believed() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let answers = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 409 Conflict\r\nContent-Length: 43\r\n\r\n{\"error\":{\"code\":\"x\",\"message\":\"do this.\"}}",
        "SSH-2.0\r\n",
    ];
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let client = client(&path, None).unwrap();
    let mut errors = Vec::new();
    for _ in answers {
        errors.push(client.get::<wire::Status>("/v1/status").await.unwrap_err());
    }
    assert!(matches!(&errors[0], ClientError::NotUnderstood { .. }), "{:?}", errors[0]);
    assert!(matches!(&errors[1], ClientError::NotUnderstood { .. }), "{:?}", errors[1]);
    assert_eq!(errors[2].to_string(), "do this.");
    assert!(matches!(&errors[3], ClientError::Broken { .. }), "{:?}", errors[3]);
}

#[tokio::test]
async fn a_request_for_which_the_daemon_has_no_place_is_sent_again() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let later = "HTTP/1.1 503 Later\r\nRetry-After: 0\r\nContent-Length: 57\r\n\r\n\
                 {\"error\":{\"code\":\"too_many_under_way\",\"message\":\"later\"}}";
    // Another refusal ends the request, whatever the header says.
    let refused = "HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 43\r\n\r\n{\"error\":{\"code\":\"x\",\"message\":\"do this.\"}}";
    let served = tokio::spawn(async move {
        for answer in [later, refused] {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Head and body may come one after the other.
            let mut request = Vec::new();
            while !request.ends_with(b"[1,2]") {
                assert!(
                    stream.read_buf(&mut request).await.unwrap() > 0,
                    "the body is not the one that was given"
                );
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let client = client(&path, None).unwrap();
    let names = [ExportName::new("a").unwrap()];
    let results = bulk::requests(&names, async |_| client.post::<u32>("/x", &[1, 2]).await).await;
    let error = results.print(OutputArgs { json: true }, |_| String::new()).unwrap_err();
    assert!(matches!(error, CliError::SomeFailed { failed: 1, of: 1 }), "{error}");
    served.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_breaks_fails_one_export_and_stops_no_other() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            if number > 0 {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1").await.unwrap();
            }
        }
    });
    let client = client(&path, None).unwrap();
    let names = ["a", "b", "c"].map(|name| ExportName::new(name).unwrap());
    let results = bulk::requests(&names, async |_| client.get::<u32>("/x").await).await;
    let error = results.print(OutputArgs { json: true }, |_| String::new()).unwrap_err();
    assert!(matches!(error, CliError::SomeFailed { failed: 1, of: 3 }), "{error}");
}

fn export_command(line: &str) -> ExportCommand {
    let Command::Export { command, .. } = parse(&format!("glidefs export {line}")).unwrap().command else {
        panic!("not about exports")
    };
    command
}

#[tokio::test]
async fn every_command_reaches_the_daemon() {
    use crate::router::tests::fake::Host;
    let host = Host::new();
    let router = host.started().await;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let listeners =
        crate::api::Listeners::open(None, &socket, None, &crate::observe::troubles::Troubles::default())
            .await;
    let state = crate::api::AppState::of_router(&router);
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    tokio::spawn(crate::api::serve(listeners, state, crate::api::Access::default(), stopped));
    let client = client(&socket, None).unwrap();
    for (line, state) in [
        ("create a --size 1GiB --queue-depth 32 --json", Some("serving")),
        ("list", Some("serving")),
        ("show a --json", Some("serving")),
        ("resize a --size 2GiB", Some("serving")),
        ("set a --read-iops 5000 --write-bps 100MiB --burst 2s --json", Some("serving")),
        ("set a --read-iops none --weight 7", Some("serving")),
        ("show a", Some("serving")),
        ("detach a", Some("detached")),
        ("attach a", Some("serving")),
        ("delete a --yes", None),
        ("create a --size 1GiB --detached", Some("detached")),
        ("attach a", Some("serving")),
        ("delete a --yes", None),
        ("delete a --yes --json", None),
        ("list --json", None),
    ] {
        exports::run(&client, export_command(line), TEXT).await.unwrap();
        let states: Vec<_> = router.list().iter().map(|info| info.state.name()).collect();
        assert_eq!(states, Vec::from_iter(state), "{line}");
    }
    for (line, exports, serving) in [
        ("create vm --count 3 --size 1GiB --detached", 3, 0),
        ("create vm --count 5 --size 1GiB --detached --json", 5, 0),
        ("attach vm-1 vm-2 vm-5", 5, 3),
        ("detach vm-1 vm-2", 5, 1),
        ("delete vm-1 vm-2 vm-3 vm-4 none --yes --json", 1, 1),
        ("create vm-6 vm-7 --size 1GiB", 3, 3),
    ] {
        exports::run(&client, export_command(line), TEXT).await.unwrap();
        let states: Vec<_> = router.list().iter().map(|info| info.state.name()).collect();
        let found = states.iter().filter(|state| **state == "serving").count();
        assert_eq!((states.len(), found), (exports, serving), "{line}");
    }
    let failed = exports::run(&client, export_command("detach vm-5 none vm-6"), TEXT).await.unwrap_err();
    assert!(matches!(failed, CliError::SomeFailed { failed: 1, of: 3 }), "{failed}");
    assert_eq!(
        router.list().iter().filter(|info| info.state.name() == "serving").count(),
        1,
        "the others are done"
    );
    let refused =
        exports::run(&client, export_command("create vm-5 vm-9 --size 2GiB"), TEXT).await.unwrap_err();
    assert!(matches!(refused, CliError::SomeFailed { failed: 1, of: 2 }), "{refused}");
    for line in ["set none vm-5 --weight 7", "open none vm-6 --json", "flush none vm-7 none2 --json"] {
        let failed = exports::run(&client, export_command(line), TEXT).await.unwrap_err();
        assert!(matches!(failed, CliError::SomeFailed { .. }), "{line}: {failed}");
    }
    let weights = router.list().iter().filter(|info| info.properties.settings.weight == 7).count();
    assert_eq!(weights, 1, "a failure before stops no other export");
    let upgraded = upgrade::run(&client, None, OutputArgs { json: true }).await.unwrap_err();
    assert!(upgraded.to_string().contains("when the daemon is ready"), "{upgraded}");
    daemon::status(&client, true).await.unwrap();
    daemon::status(&client, false).await.unwrap();
    let error = exports::run(&client, export_command("show none"), TEXT).await.unwrap_err();
    assert!(error.to_string().contains("there is no export"), "{error}");
}
