//! The arguments of `glidefs csi`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// Longest value of a topology segment, and of a label of Kubernetes.
const SEGMENT_CHARS_MAX: usize = 63;

/// How to run the driver.
#[derive(Debug, Args)]
pub(in crate::cli) struct CsiArgs {
    /// Unix socket on which the driver serves gRPC
    #[arg(long, value_name = "unix:///PATH", default_value = "unix:///run/glidefs/csi.sock")]
    pub endpoint: Endpoint,
    /// Name of this host in the cluster: of the Kubernetes node [default: the host's name]
    #[arg(long, value_name = "NAME", value_parser = segment)]
    pub node_id: Option<String>,
    /// Name of the store, for hosts that share one: volumes may be used on each host whose driver has the same name here
    #[arg(long, value_name = "NAME", value_parser = segment)]
    pub shared_store: Option<String>,
    /// Each host runs its own controller: leave out ControllerExpandVolume and ControllerModifyVolume
    #[arg(long)]
    pub node_deployment: bool,
    /// Which lines to log, such as info or glidefs=debug
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log: String,
}

/// The address of a Unix socket.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Endpoint(pub PathBuf);

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        // Both forms are common: unix:///run/x.sock and unix:/run/x.sock.
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if path.starts_with('/') && path.len() > 1 {
            Ok(Self(path.into()))
        } else {
            Err("use a Unix socket with an absolute path, such as unix:///run/glidefs/csi.sock")
        }
    }
}

/// A value of a topology segment, by the specification.
pub(in crate::cli) fn segment(text: &str) -> Result<String, String> {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_fine = text.len() <= SEGMENT_CHARS_MAX
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte));
    if is_fine {
        return Ok(text.into());
    }
    Err(format!(
        "use up to {SEGMENT_CHARS_MAX} letters, digits, '.', '_' and '-', with a letter or digit at both ends"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_unix_socket_with_an_absolute_path() {
        for text in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().0, PathBuf::from("/run/a.sock"), "{text}");
        }
        for text in ["", "/", "unix://", "unix://a.sock", "tcp://127.0.0.1:1", "a.sock"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_that_kubernetes_would_refuse_as_topology_are_refused() {
        for text in ["a", "node-1.example.org", "A_1"] {
            segment(text).unwrap();
        }
        for text in ["", "-a", "a-", "a b", "ü", &"x".repeat(64)] {
            assert!(segment(text).is_err(), "{text}");
        }
    }
}
