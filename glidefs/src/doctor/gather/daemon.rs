//! The daemon that runs, as the kernel shows its process: the environment, the CPUs, the workers.
//!
//! Invariant: values of the environment may be secret, and are given to the store's set-up only.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::patience::answer;
use crate::config::CpuList;
use crate::store::Variables;
use crate::worker::cpus::{Usable, quota_of};

/// The process of a daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    pub pid: i32,
    /// The environment of the start; `None` where this command may not read it.
    pub variables: Option<Variables>,
    /// The CPUs and the CPU time; `None` where the kernel does not tell.
    pub usable: Option<Usable>,
    /// Number of the worker threads.
    pub workers: usize,
}

impl Daemon {
    /// The process `pid`; `None` where the kernel does not tell about it.
    pub async fn find(pid: i32) -> Option<Self> {
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

    /// The value of an environment variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let mut variables = self.variables.iter().flatten();
        variables.find(|(key, _)| key == name).map(|(_, value)| value.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_cpus_are_read_from_the_texts_of_the_kernel() {
        let found = variables(b"AWS_REGION=eu-1\0EMPTY=\0broken\0KEY=a=b\0BAD=\xff\0");
        let expected = [("AWS_REGION", "eu-1"), ("EMPTY", ""), ("KEY", "a=b")];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(allowed("Name:\tx\nCpus_allowed_list:\t0-1,4\n"), Some(vec![0, 1, 4]));
        assert_eq!(allowed("Name:\tx\n"), None);
    }

    #[tokio::test]
    async fn a_process_is_found_with_its_cpus_and_variables() {
        let own = i32::try_from(std::process::id()).unwrap();
        let daemon = Daemon::find(own).await.unwrap();
        assert!(!daemon.usable.as_ref().unwrap().cpus.is_empty());
        assert_eq!(daemon.variable("PATH"), std::env::var("PATH").ok().as_deref());
    }
}
