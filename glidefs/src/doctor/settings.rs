//! The configuration, and the files and groups that the configuration names.
//!
//! Owns the judgement. Does not own the checks of the configuration (`config`) nor of the token (`api`).

use std::io;

use super::finding::Finding;
use crate::api::TokenError;
use crate::observe::chain;

/// How the configuration was taken.
#[derive(Debug)]
pub(super) struct SettingsFacts {
    /// The path of the file.
    pub path: String,
    /// Whether this command may read every file.
    pub is_root: bool,
    /// Why the file was refused.
    pub loaded: Result<(), Refusal>,
    /// Why a daemon with the CPUs of this command would refuse a file that is fit for all CPUs.
    pub only_elsewhere: Option<String>,
    /// Whether the token file was taken, or that there was no answer; `None` without a file.
    pub token: Option<Result<Result<(), TokenError>, String>>,
    /// The group of the socket, and whether the host has the group; `None` without one.
    pub group: Option<(String, bool)>,
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The sentence, with the line and the allowed values.
    pub text: String,
    /// Whether this command may not read the file.
    pub is_forbidden: bool,
}

/// All findings about the configuration.
pub(super) fn check(facts: &SettingsFacts) -> Vec<Finding> {
    let mut findings = vec![configuration(facts)];
    findings.extend(token(facts));
    findings.extend(group(facts));
    findings
}

fn configuration(facts: &SettingsFacts) -> Finding {
    const CHECK: &str = "configuration";
    match (&facts.loaded, &facts.only_elsewhere) {
        (Ok(()), None) => Finding::ok(CHECK, &facts.path),
        (Ok(()), Some(refusal)) => Finding::note(
            CHECK,
            refusal,
            "this command may not use all CPUs of the host; a daemon of the same CPUs does not start",
            "nothing, if the daemon may use the CPUs; otherwise correct the line",
        ),
        (Err(refusal), _) if refusal.is_forbidden && !facts.is_root => Finding::note(
            CHECK,
            &refusal.text,
            "the checks below are of the defaults, and the store was not asked",
            "sudo glidefs doctor",
        ),
        (Err(refusal), _) => Finding::failure(
            CHECK,
            &refusal.text,
            "the daemon does not start; the checks below are of the defaults, and the store was not asked",
            "correct the line, or write a file with glidefs init; then systemctl start glidefs",
        ),
    }
}

fn token(facts: &SettingsFacts) -> Option<Finding> {
    const CHECK: &str = "API token";
    const WHY: &str = "the daemon does not start, or takes no request with a token";
    let error = match facts.token.as_ref()? {
        Ok(Ok(())) => {
            return Some(Finding::ok(CHECK, "the file has a token that only its owner can read"));
        }
        Ok(Err(error)) => error,
        Err(silence) => {
            let mend = "mend the file system of the file, or set [api] token_file to another one";
            return Some(Finding::failure(CHECK, silence, WHY, mend));
        }
    };
    let found = chain(error);
    let kind = match error {
        TokenError::Read { source, .. } => Some(source.kind()),
        _ => None,
    };
    if kind == Some(io::ErrorKind::PermissionDenied) && !facts.is_root {
        return Some(Finding::note(
            CHECK,
            found,
            "only the owner of the file may read it",
            "sudo glidefs doctor",
        ));
    }
    let mend = match error {
        TokenError::Exposed { path, .. } => format!("chmod 600 '{}'", path.display()),
        TokenError::NotAToken { path } => new_token(path),
        TokenError::Read { path, .. } if kind == Some(io::ErrorKind::NotFound) => new_token(path),
        TokenError::Read { .. } | TokenError::NotAFile { .. } => {
            "set [api] token_file to a file that the daemon can read".into()
        }
    };
    Some(Finding::failure(CHECK, found, WHY, mend))
}

/// The command that writes a token where there is none.
fn new_token(path: &std::path::Path) -> String {
    format!("(umask 077; openssl rand -hex 32 > '{}'), and give the token to the clients", path.display())
}

fn group(facts: &SettingsFacts) -> Option<Finding> {
    const CHECK: &str = "API group";
    let (name, exists) = facts.group.as_ref()?;
    Some(if *exists {
        Finding::ok(CHECK, name)
    } else {
        Finding::failure(
            CHECK,
            format!("there is no group {name:?}"),
            "the daemon does not start",
            format!("groupadd --system {name}, or change [api] group"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Failure, Note, Ok};
    use super::*;

    fn facts() -> SettingsFacts {
        SettingsFacts {
            path: "/etc/glidefs/glidefs.toml".into(),
            is_root: true,
            loaded: Result::Ok(()),
            only_elsewhere: None,
            token: Some(Result::Ok(Result::Ok(()))),
            group: Some(("vms".into(), true)),
        }
    }

    fn with_token(is_root: bool, error: TokenError) -> Finding {
        token(&SettingsFacts { is_root, token: Some(Result::Ok(Err(error))), ..facts() }).unwrap()
    }

    #[test]
    fn a_configuration_that_is_taken_is_well() {
        let findings = check(&facts());
        assert!(findings.len() == 3 && findings.iter().all(|finding| finding.verdict == Ok));
        assert_eq!(check(&SettingsFacts { token: None, group: None, ..facts() }).len(), 1);
    }

    #[test]
    fn a_refused_line_is_a_failure_with_the_sentence_of_the_refusal() {
        let text = "glidefs.toml:3: [cache] size: 1MiB is too small".to_owned();
        let refused = Err(Refusal { text: text.clone(), is_forbidden: false });
        let finding = configuration(&SettingsFacts { loaded: refused, ..facts() });
        assert_eq!((finding.verdict, finding.found), (Failure, text));
    }

    #[test]
    fn files_that_only_root_may_read_are_a_note_to_others() {
        let forbidden = || Err(Refusal { text: "permission denied".into(), is_forbidden: true });
        let with =
            |is_root| configuration(&SettingsFacts { is_root, loaded: forbidden(), ..facts() }).verdict;
        assert_eq!([with(false), with(true)], [Note, Failure]);
        let error = || TokenError::Read { path: "/t".into(), source: io::ErrorKind::PermissionDenied.into() };
        assert_eq!([false, true].map(|is_root| with_token(is_root, error()).verdict), [Note, Failure]);
    }

    #[test]
    fn a_file_that_fits_all_cpus_and_not_those_of_this_command_is_a_note() {
        let facts = SettingsFacts { only_elsewhere: Some("CPU 3".into()), ..facts() };
        assert_eq!(configuration(&facts).verdict, Note);
    }

    #[test]
    fn a_new_token_is_advised_only_where_there_is_none() {
        let exposed = with_token(true, TokenError::Exposed { path: "/etc/a token".into(), mode: 0o644 });
        assert_eq!((exposed.verdict, exposed.mend.unwrap().as_str()), (Failure, "chmod 600 '/etc/a token'"));
        let missing = TokenError::Read { path: "/t".into(), source: io::ErrorKind::NotFound.into() };
        assert!(with_token(true, missing).mend.unwrap().contains("openssl"));
        let broken = TokenError::Read { path: "/t".into(), source: io::ErrorKind::IsADirectory.into() };
        assert!(!with_token(true, broken).mend.unwrap().contains("openssl"));
        let silent = SettingsFacts { token: Some(Err("no answer".into())), ..facts() };
        assert_eq!(token(&silent).unwrap().verdict, Failure);
    }

    #[test]
    fn a_missing_group_is_a_failure() {
        let broken = SettingsFacts { group: Some(("vms".into(), false)), ..facts() };
        assert!(group(&broken).unwrap().mend.unwrap().starts_with("groupadd --system vms"));
    }
}
