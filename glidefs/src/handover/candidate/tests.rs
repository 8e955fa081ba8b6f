//! Successors that are shell scripts: the socket is their standard input, for reading and writing.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::process::TAIL_BYTES;
use super::*;
use crate::handover::message::Formats;

fn identity() -> Identity {
    Identity {
        cache: "/c".into(),
        directory: (1, 2),
        socket: "/s".into(),
        listen: "127.0.0.1:9".into(),
        store: "s3://b".into(),
        formats: Formats { cache: 2, records: 3, catalog: 4 },
    }
}

fn hello(protocol: u32, directory: u64, socket: &str) -> String {
    hello_with(protocol, directory, socket, "none", "s3://b")
}

fn hello_with(protocol: u32, directory: u64, socket: &str, listen: &str, store: &str) -> String {
    format!(
        r#"echo '{{"say":"hello","protocol":{protocol},"version":"9.9.9","identity":{{"cache":"/d","directory":[1,{directory}],"socket":"{socket}","listen":"{listen}","store":"{store}"}}}}' >&0"#
    )
}

/// Reads until the successor is told to follow. A script that ends before may close the socket while the marks are still sent.
const TOLD: &str = "while read -r line; do case $line in *follow*) break ;; esac; done";

/// Has a script with these lines get ready. Also whether the cache was prepared.
fn prepared(lines: &[&str]) -> (Result<Candidate, NotReady>, bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("successor");
    fs::write(&path, format!("#!/bin/sh\n{}\n", lines.join("\n"))).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let launch = Launch {
        program: "/no/such/program".into(),
        name: "glidefs".into(),
        arguments: vec!["run".into(), "--config".into(), "a b".into()],
        is_first: false,
    };
    let is_prepared = Cell::new(false);
    let candidate = Candidate::prepare(&launch, Some(&path), &identity(), || {
        is_prepared.set(true);
        vec![Mark(u32::MAX, u64::MAX, u64::MAX); 3 * MARKS_MAX]
    });
    (candidate, is_prepared.get())
}

fn refused(lines: &[&str]) -> String {
    let (candidate, is_prepared) = prepared(lines);
    assert!(!is_prepared, "the cache was prepared for nothing");
    chain(&candidate.unwrap_err().error)
}

#[test]
fn the_version_of_a_successor_that_does_not_get_ready_is_told_once_it_was_said() {
    // Without a word about itself; before the log was prepared; and while that is told, so that the message finds nobody.
    let before = prepared(&["exit 1"]).0.unwrap_err();
    assert_eq!(before.version, None);
    let other = prepared(&[&hello(PROTOCOL, 3, "/s"), "exec sleep 600"]).0.unwrap_err();
    assert_eq!(other.version.as_deref(), Some("9.9.9"));
    let gone = prepared(&[&hello(PROTOCOL, 2, "/s"), "read -r marks", "exit 5"]).0.unwrap_err();
    assert!(chain(&gone.error).contains("exit status: 5"), "{gone:?}");
    assert_eq!(gone.version.as_deref(), Some("9.9.9"));
}

#[test]
fn a_successor_gets_the_arguments_and_its_version_is_known_when_it_is_ready() {
    let (candidate, is_prepared) = prepared(&[
        "[ \"$*\" = 'run --config a b --successor=1' ] || exit 7",
        "[ -z \"$WATCHDOG_PID\" ] || exit 8",
        &hello(PROTOCOL, 2, "/s"),
        "read -r line; case $line in *marks*) ;; *) exit 9 ;; esac",
        TOLD,
        r#"echo '{"say":"alive"}' >&0; echo '{"say":"ready"}' >&0; exec sleep 600"#,
    ]);
    let mut candidate = candidate.unwrap();
    assert!(is_prepared);
    assert_eq!(candidate.version(), "9.9.9");
    assert!(candidate.child.try_wait().unwrap().is_none(), "the successor waits");
    candidate.child.kill().unwrap();
    candidate.child.wait().unwrap();
}

#[test]
fn a_program_that_knows_nothing_of_a_hand_over_is_told_of_with_its_last_words() {
    let said = refused(&["echo 'unexpected argument --successor' >&2", "exit 2"]);
    assert!(said.contains("exit status: 2") && said.ends_with(": unexpected argument --successor"), "{said}");
    let silent = refused(&["exit 1"]);
    assert!(silent.ends_with("(exit status: 1)"), "{silent}");
    let long = refused(&["head -c 9000 /dev/zero | tr '\\0' . >&2; echo ' the end' >&2; exit 1"]);
    assert!(long.ends_with(". the end") && long.len() < TAIL_BYTES + 500, "{} bytes", long.len());
}

#[test]
fn a_successor_that_refuses_is_quoted() {
    let said = refused(&[r#"echo '{"say":"failed","reason":"no such group"}' >&0; exec sleep 600"#]);
    assert!(said.ends_with("cannot take over: no such group"), "{said}");
    // Also when the old program finds the socket closed first, while it sends.
    let failing = r#"echo '{"say":"failed","reason":"no room"}' >&0; exit 1"#;
    let (gone, _) = prepared(&[&hello(PROTOCOL, 2, "/s"), "read -r marks", failing]);
    let said = chain(&gone.unwrap_err().error);
    assert!(said.ends_with("cannot take over: no room"), "{said}");
}

#[test]
fn a_successor_of_another_cache_socket_or_protocol_is_refused() {
    let said = refused(&[&hello(PROTOCOL, 3, "/s"), "exec sleep 600"]);
    assert!(said.contains("[cache] dir is /d for the successor, and /c"), "{said}");
    let said = refused(&[&hello(PROTOCOL, 2, "/other"), "exec sleep 600"]);
    assert!(said.contains("[api] socket is /other"), "{said}");
    let said = refused(&[&hello(2, 2, "/s"), "exec sleep 600"]);
    assert!(said.contains("version 2 of the hand-over"), "{said}");
}

#[test]
fn a_successor_that_may_write_what_this_program_cannot_read_is_refused_before_anything_is_written() {
    let hello = |formats: &str| {
        let formats = format!("\"formats\":{{{formats}}},\"cache\"");
        hello(PROTOCOL, 2, "/s").replacen("\"cache\"", &formats, 1)
    };
    let newer = hello(r#""cache":3,"records":3,"catalog":4"#);
    let said = refused(&[&newer, "exec sleep 600"]);
    assert!(said.contains("version 3 of the cache") && said.contains("up to version 2"), "{said}");
    let said = refused(&[&hello(r#""cache":2,"records":3,"catalog":5"#), "exec sleep 600"]);
    assert!(said.contains("version 5 of the catalog"), "{said}");
    let ready = r#"echo '{"say":"ready"}' >&0; exec sleep 600"#;
    let (older, _) = prepared(&[&hello(r#""cache":1,"records":2,"catalog":4"#), TOLD, ready]);
    older.unwrap().end();
}

#[test]
fn a_setting_that_would_keep_the_successor_from_serving_is_refused_before_any_pause() {
    for store in ["none", "s3://c"] {
        let said = refused(&[&hello_with(PROTOCOL, 2, "/s", "none", store), "exec sleep 600"]);
        assert!(said.contains(&format!("[store] url is {store} for the successor, and s3://b")), "{said}");
    }
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = occupied.local_addr().unwrap().to_string();
    let said = refused(&[&hello_with(PROTOCOL, 2, "/s", &listen, "s3://b"), "exec sleep 600"]);
    assert!(said.contains(&format!("[api] listen is {listen}")) && said.contains("in use"), "{said}");
    assert!(check_address("127.0.0.1:0", "127.0.0.1:9").is_ok());
    assert!(check_address("none", &listen).is_ok());
    // The daemon itself has the port.
    let port = occupied.local_addr().unwrap().port();
    assert!(check_address(&listen, &format!("0.0.0.0:{port}")).is_ok());
}

#[test]
fn the_failure_of_a_successor_that_was_ready_is_seen() {
    let ready = |then: &str| {
        let then = format!(r#"echo '{{"say":"alive"}}' >&0; echo '{{"say":"ready"}}' >&0; {then}"#);
        prepared(&[&hello(PROTOCOL, 2, "/s"), TOLD, &then]).0.unwrap()
    };
    let failure = |candidate: &mut Candidate| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(reason) = candidate.has_failed() {
                return reason;
            }
        }
        panic!("no failure")
    };
    let mut ended = ready("exit 7");
    assert!(failure(&mut ended).contains("exit status: 7"));
    let mut failed = ready(r#"echo '{"say":"failed","reason":"no room"}' >&0; exec sleep 600"#);
    assert_eq!(failure(&mut failed), "no room");
    failed.end();
    let mut lives = ready(r#"echo '{"say":"alive"}' >&0; exec sleep 600"#);
    assert_eq!((lives.has_failed(), lives.has_failed()), (None, None));
    let pid = lives.pid();
    lives.end();
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the process is left");
}

#[test]
fn tenures_come_before_go_and_only_to_a_successor_that_takes_them() {
    let takes = hello(PROTOCOL, 2, "/s").replace("\"identity\"", "\"takes_tenures\":true,\"identity\"");
    let counts =
        r"n=0; while read -r line; do case $line in *tenures*) n=$((n + 1)) ;; *go*) exit $n ;; esac; done";
    for (hello, messages) in [(takes, 3), (hello(PROTOCOL, 2, "/s"), 0)] {
        let ready = r#"echo '{"say":"ready"}' >&0"#;
        let mut candidate = prepared(&[&hello, TOLD, ready, counts]).0.unwrap();
        assert_eq!(candidate.takes_tenures(), messages > 0);
        candidate.tell_to_go(&[Tenure(u32::MAX, u64::MAX); 2 * TENURES_MAX + 1]).unwrap();
        assert_eq!(candidate.child.wait().unwrap().code(), Some(messages));
    }
}

#[test]
fn a_successor_that_cannot_be_told_to_take_over_has_failed() {
    let ready = r#"echo '{"say":"ready"}' >&0; exec <&-; exec sleep 600"#;
    let mut deaf = prepared(&[&hello(PROTOCOL, 2, "/s"), TOLD, ready]).0.unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    // Until the script has closed the socket.
    while deaf.failure.is_none() && Instant::now() < deadline {
        deaf.tell(&[]);
    }
    let failure = deaf.failure.clone().unwrap();
    assert!(failure.contains("could not be told to take over"), "{failure}");
    deaf.end();
}

#[test]
fn the_first_process_of_a_container_starts_no_successor() {
    let launch =
        Launch { program: "/bin/true".into(), name: "glidefs".into(), arguments: Vec::new(), is_first: true };
    let refused = Candidate::prepare(&launch, None, &identity(), Vec::new).unwrap_err().error;
    assert!(chain(&refused).contains("restart the container"), "{refused}");
    assert!(matches!(refused, OfferError::FirstProcess));
}

#[test]
fn a_successor_takes_the_signals_to_stop_also_when_the_thread_that_starts_it_does_not() {
    let starting = std::thread::spawn(|| {
        super::super::standby::stops().thread_block().unwrap();
        let candidate = prepared(&["trap 'exit 0' TERM; kill -TERM $$; echo blocked >&2; exit 9"]);
        let mask = SigSet::thread_get_mask().unwrap();
        (chain(&candidate.0.unwrap_err().error), mask.contains(nix::sys::signal::Signal::SIGTERM))
    });
    let (said, is_blocked) = starting.join().unwrap();
    assert!(said.contains("exit status: 0"), "{said}");
    assert!(is_blocked, "the thread takes signals now");
}

#[test]
fn nonsense_and_messages_out_of_turn_are_refused() {
    let said = refused(&["echo nonsense >&0; exec sleep 600"]);
    assert!(said.contains("is no message of a hand-over"), "{said}");
    let said = refused(&[r#"echo '{"say":"ready"}' >&0; exec sleep 600"#]);
    assert!(said.contains("out of turn"), "{said}");
}

#[test]
fn a_successor_that_dies_before_it_is_ready_is_told_of() {
    let (candidate, is_prepared) =
        prepared(&[&hello(PROTOCOL, 2, "/s"), "read -r line", "echo broken >&2", "kill -9 $$"]);
    let said = chain(&candidate.unwrap_err().error);
    assert!(is_prepared);
    assert!(said.contains("signal: 9") && said.ends_with(": broken"), "{said}");
}

#[test]
fn a_file_that_is_no_program_for_this_machine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("garbage");
    fs::write(&path, [0x7f, b'E', b'L', b'F', 0, 1, 2, 3]).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let launch =
        Launch { program: path.clone(), name: "glidefs".into(), arguments: Vec::new(), is_first: false };
    for named in [None, Some(path.as_path())] {
        let refused = Candidate::prepare(&launch, named, &identity(), Vec::new).unwrap_err();
        let said = chain(&refused.error);
        assert!(matches!(refused.error, OfferError::Start { .. } | OfferError::Ended { .. }), "{said}");
    }
}
