//! The daemon, and leftovers of dead daemons: devices and a socket.
//!
//! Owns the judgement. Removes nothing.

use std::path::PathBuf;

use super::finding::Finding;
use crate::observe::chain;
use crate::ublk::{Condition, Survey};

/// Names that a line of findings lists at most.
const LISTED_MAX: usize = 5;

/// Daemons, dead and alive, and their devices.
#[derive(Debug)]
pub(super) struct LeftoverFacts {
    pub socket: Socket,
    /// The path of the socket.
    pub socket_path: PathBuf,
    /// All ublk devices of the host, or why the kernel does not tell.
    pub devices: Result<Survey, String>,
    /// Whether this command may ask about every device.
    pub is_root: bool,
}

/// The socket of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    Absent,
    Listens {
        /// The process id of the daemon; `None` where the kernel does not tell.
        process: Option<i32>,
        /// Whether every export has been seen to; `None` without an answer.
        is_ready: Option<bool>,
    },
    /// Nobody listens: the file is of a dead daemon.
    Dead,
    /// The socket could not be tried: the kernel's error.
    Unknown(String),
}

impl Socket {
    /// The process id of the daemon that listens.
    pub fn process(&self) -> Option<i32> {
        match self {
            Self::Listens { process, .. } => *process,
            _ => None,
        }
    }
}

impl LeftoverFacts {
    /// The names of the devices of our cache in a condition of `wanted`.
    fn named(&self, wanted: &[Condition]) -> Vec<String> {
        let devices = self.devices.iter().flat_map(|survey| &survey.devices);
        let ours = devices.filter(|device| device.is_ours && wanted.contains(&device.condition));
        ours.map(|device| device.id.path()).collect()
    }

    /// The paths of all devices of our cache.
    pub fn ours(&self) -> Vec<String> {
        use Condition::{Failing, Served, Stopped, Waiting};
        self.named(&[Served, Waiting, Failing, Stopped])
    }

    /// Whether some process serves devices of our cache.
    pub fn is_served(&self) -> bool {
        !self.named(&[Condition::Served]).is_empty()
    }
}

pub(super) fn check(facts: &LeftoverFacts) -> Vec<Finding> {
    vec![daemon(facts), devices(facts)]
}

fn daemon(facts: &LeftoverFacts) -> Finding {
    const CHECK: &str = "daemon";
    const LOG: &str = "journalctl -u glidefs -n 30";
    let path = facts.socket_path.display();
    let name = facts.socket.process().map_or("a daemon".into(), |process| format!("process {process}"));
    match &facts.socket {
        Socket::Listens { is_ready: Some(true), .. } => {
            Finding::ok(CHECK, format!("{name} answers on {path}"))
        }
        Socket::Listens { is_ready: Some(false), .. } => Finding::note(
            CHECK,
            format!("{name} is starting, or waits for something"),
            "devices are served one after the other; a large cache takes minutes",
            format!("wait; {LOG} says what the daemon does"),
        ),
        Socket::Listens { is_ready: None, .. } => Finding::warning(
            CHECK,
            format!("{name} listens on {path} and does not answer"),
            "a daemon that hangs serves nothing; systemd restarts such a daemon after 30 s",
            format!("wait; {LOG} says what the daemon does"),
        ),
        Socket::Absent => Finding::ok(CHECK, "does not run"),
        Socket::Dead => Finding::note(
            CHECK,
            format!("nobody listens on {path}"),
            "the daemon died; its devices wait until the next daemon serves them",
            format!("systemctl start glidefs, which replaces the file; {LOG} says why the daemon died"),
        ),
        Socket::Unknown(error) => Finding::note(
            CHECK,
            format!("{path}: {error}"),
            "whether a daemon runs is not known, and the limits below are those of this command",
            "sudo glidefs doctor",
        ),
    }
}

fn devices(facts: &LeftoverFacts) -> Finding {
    const CHECK: &str = "devices";
    const UNSEEN: &str = "devices may wait for a daemon unseen";
    const DRIVER: &str = "dmesg | grep ublk; the driver has to answer about every device";
    let runs = matches!(facts.socket, Socket::Listens { .. });
    let survey = match &facts.devices {
        Ok(survey) => survey,
        Err(error) => return Finding::failure(CHECK, error, UNSEEN, DRIVER),
    };
    let [served, waiting, failing, stopped] =
        [Condition::Served, Condition::Waiting, Condition::Failing, Condition::Stopped]
            .map(|condition| facts.named(&[condition]));
    if !failing.is_empty() {
        return Finding::failure(
            CHECK,
            format!("fail every request: {}", listed(&failing)),
            "programs on the devices get I/O errors",
            "glidefs export list, then glidefs export detach NAME and glidefs export attach NAME",
        );
    }
    if !waiting.is_empty() {
        let why = "requests of the devices are held by the kernel, and programs on the devices hang; no acknowledged data is lost";
        let found = format!("wait for a daemon: {}", listed(&waiting));
        return match facts.socket {
            Socket::Listens { is_ready: Some(false), .. } => {
                Finding::note(CHECK, found, why, "wait until the daemon is ready")
            }
            Socket::Listens { .. } => Finding::warning(
                CHECK,
                format!("wait although a daemon runs: {}", listed(&waiting)),
                why,
                "glidefs export list shows the state of each export, and journalctl -u glidefs the reason; an export that the store \
                 has not confirmed waits for the store",
            ),
            _ => Finding::warning(CHECK, found, why, "systemctl start glidefs"),
        };
    }
    if let Some(error) = survey.errors.first() {
        let found = format!("{} could not be asked, such as: {}", survey.errors.len(), chain(error));
        if !facts.is_root {
            return Finding::note(CHECK, found, UNSEEN, "sudo glidefs doctor");
        }
        return Finding::warning(CHECK, found, UNSEEN, DRIVER);
    }
    if !stopped.is_empty() {
        return Finding::note(
            CHECK,
            format!("made and not started: {}", listed(&stopped)),
            "a start that was cut off left the devices; each takes a number and kernel memory",
            "nothing: the next start of the daemon takes or removes the devices of its exports",
        );
    }
    if !served.is_empty() && !runs {
        return Finding::note(
            CHECK,
            format!(
                "served by a process that is not at {}: {}",
                facts.socket_path.display(),
                listed(&served)
            ),
            "a second daemon runs, or the configuration has another [api] socket than the daemon",
            "pgrep -a glidefs; glidefs doctor --config FILE with the file of that daemon",
        );
    }
    Finding::ok(CHECK, format!("{} of this cache are served, {} in all", served.len(), survey.devices.len()))
}

fn listed(names: &[String]) -> String {
    let first = names.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Failure, Note, Ok, Warning};
    use super::*;
    use crate::router::DeviceError;
    use crate::router::devices::DeviceId;
    use crate::ublk::Surveyed;

    const READY: Socket = Socket::Listens { process: Some(7), is_ready: Some(true) };
    const STARTING: Socket = Socket::Listens { process: Some(7), is_ready: Some(false) };
    const SILENT: Socket = Socket::Listens { process: None, is_ready: None };

    fn device(id: u32, condition: Condition) -> Surveyed {
        Surveyed { id: DeviceId(id), condition, is_ours: true }
    }

    fn facts(socket: Socket, devices: Vec<Surveyed>) -> LeftoverFacts {
        let devices = Result::Ok(Survey { devices, errors: Vec::new() });
        LeftoverFacts { socket, socket_path: "/run/glidefs/glidefs.sock".into(), devices, is_root: true }
    }

    #[test]
    fn a_daemon_that_serves_its_devices_is_well_and_so_is_a_host_without_one() {
        let runs = facts(READY, vec![device(0, Condition::Served)]);
        for facts in [runs, facts(Socket::Absent, Vec::new())] {
            assert!(check(&facts).iter().all(|finding| finding.verdict == Ok), "{:?}", check(&facts));
        }
    }

    #[test]
    fn a_socket_of_a_dead_starting_or_silent_daemon_is_told_apart() {
        let verdict = |socket| daemon(&facts(socket, Vec::new())).verdict;
        let unknown = Socket::Unknown("EACCES".into());
        assert_eq!([Socket::Dead, unknown, STARTING, SILENT].map(verdict), [Note, Note, Note, Warning]);
    }

    #[test]
    fn devices_that_wait_or_fail_are_named_with_the_command_that_helps() {
        let waiting = || vec![device(3, Condition::Waiting), device(4, Condition::Served)];
        let without = devices(&facts(Socket::Dead, waiting()));
        assert_eq!((without.verdict, without.mend.as_deref()), (Warning, Some("systemctl start glidefs")));
        assert!(without.found.contains("/dev/ublkb3") && !without.found.contains("ublkb4"));
        let failing = devices(&facts(Socket::Absent, vec![device(3, Condition::Failing)]));
        assert_eq!(failing.verdict, Failure);
    }

    #[test]
    fn beside_a_daemon_nobody_is_told_to_restart_it() {
        for condition in [Condition::Waiting, Condition::Stopped] {
            for (socket, expected) in [(READY, Warning), (STARTING, Note), (SILENT, Warning)] {
                let finding = devices(&facts(socket, vec![device(3, condition)]));
                let expected = if condition == Condition::Stopped { Note } else { expected };
                assert_eq!(finding.verdict, expected);
                assert!(!finding.mend.unwrap().contains("systemctl"));
            }
        }
    }

    #[test]
    fn devices_of_a_start_that_was_cut_off_or_of_another_daemon_are_notes() {
        assert_eq!(devices(&facts(Socket::Absent, vec![device(3, Condition::Stopped)])).verdict, Note);
        assert_eq!(devices(&facts(Socket::Absent, vec![device(3, Condition::Served)])).verdict, Note);
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_a_failure_and_a_device_that_does_not_a_warning_or_a_note() {
        let silent = LeftoverFacts { devices: Err("no answer".into()), ..facts(Socket::Absent, Vec::new()) };
        assert_eq!(devices(&silent).verdict, Failure);
        let with = |is_root| {
            let errors = vec![DeviceError::NoPermission];
            let devices = Result::Ok(Survey { devices: vec![device(3, Condition::Served)], errors });
            LeftoverFacts { devices, is_root, ..facts(READY, Vec::new()) }
        };
        assert_eq!([true, false].map(|is_root| devices(&with(is_root)).verdict), [Warning, Note]);
    }

    #[test]
    fn devices_of_other_programs_are_counted_and_not_judged() {
        let other = Surveyed { is_ours: false, ..device(3, Condition::Waiting) };
        let facts = facts(Socket::Absent, vec![other]);
        let finding = devices(&facts);
        assert_eq!((finding.verdict, &*finding.found), (Ok, "0 of this cache are served, 1 in all"));
        assert!(facts.ours().is_empty() && !facts.is_served());
    }

    #[test]
    fn a_long_list_of_devices_is_cut() {
        let devices = (0..7).map(|id| device(id, Condition::Waiting)).collect();
        let finding = super::devices(&facts(Socket::Absent, devices));
        assert!(finding.found.ends_with("/dev/ublkb4 and 2 more"), "{}", finding.found);
    }
}
