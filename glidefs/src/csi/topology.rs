//! Where a volume can be used: on this host, or on each host with the same store.
//!
//! Owns the segments and their meaning. Invariant: a volume is promised to other hosts only where the operator has said that the
//! hosts share a store.

use std::collections::HashMap;

use super::error::CsiError;
use super::proto::{Topology, TopologyRequirement};

/// The segment with the name of the host.
pub(super) const HOST: &str = "topology.glidefs.io/host";
/// The segment with the name of the store which several hosts share.
pub(super) const STORE: &str = "topology.glidefs.io/store";

/// This host, as the orchestrator knows it.
#[derive(Clone, Debug)]
pub(crate) struct HostTopology {
    /// The name of this host in the cluster.
    pub node_id: String,
    /// The name of the store which other hosts have as well; `None` where volumes stay on this host.
    pub shared_store: Option<String>,
}

impl HostTopology {
    /// The segments of this host.
    pub(super) fn of_node(&self) -> Topology {
        let mut segments = HashMap::from([(HOST.into(), self.node_id.clone())]);
        segments.extend(self.shared_store.iter().map(|store| (STORE.into(), store.clone())));
        Topology { segments }
    }

    /// Where a volume of this host can be used.
    pub(super) fn of_volume(&self) -> Topology {
        let segment = match &self.shared_store {
            Some(store) => (STORE.into(), store.clone()),
            None => (HOST.into(), self.node_id.clone()),
        };
        Topology { segments: HashMap::from([segment]) }
    }

    /// Checks that a volume made on this host is where the request wants it.
    pub(super) fn check(&self, wanted: Option<&TopologyRequirement>) -> Result<(), CsiError> {
        let Some(wanted) = wanted else { return Ok(()) };
        // The requisite ones are the rule; where there are none, a preferred one has to do.
        let options = if wanted.requisite.is_empty() { &wanted.preferred } else { &wanted.requisite };
        if options.is_empty() || options.iter().any(|option| self.reaches(option)) {
            return Ok(());
        }
        Err(CsiError::new(
            tonic::Code::ResourceExhausted,
            format!(
                "volumes of host {} cannot be used where the request wants the volume: the driver of another host has to make it",
                self.node_id
            ),
        ))
    }

    /// Whether a volume of this host can be used in `topology`: this host, or a host which shares the store.
    pub(super) fn reaches(&self, topology: &Topology) -> bool {
        let own = self.of_node().segments;
        let is_shared = |store| topology.segments.get(STORE) == Some(store);
        self.shared_store.as_ref().is_some_and(is_shared)
            || topology.segments.iter().all(|(key, value)| own.get(key) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(store: Option<&str>) -> HostTopology {
        HostTopology { node_id: "host-1".into(), shared_store: store.map(Into::into) }
    }

    fn wanted(segments: &[(&str, &str)]) -> TopologyRequirement {
        let segments = segments.iter().map(|&(key, value)| (key.into(), value.into())).collect();
        TopologyRequirement { requisite: vec![Topology { segments }], preferred: vec![] }
    }

    #[test]
    fn a_volume_stays_on_its_host_unless_hosts_share_the_store() {
        assert_eq!(host(None).of_volume().segments, HashMap::from([(HOST.into(), "host-1".into())]));
        let shared = host(Some("prod"));
        assert_eq!(shared.of_volume().segments, HashMap::from([(STORE.into(), "prod".into())]));
        assert_eq!(shared.of_node().segments.len(), 2);
    }

    #[test]
    fn a_volume_is_not_made_where_it_could_not_be_used() {
        let here = wanted(&[(HOST, "host-1")]);
        let elsewhere = wanted(&[(HOST, "host-2")]);
        assert!(host(None).check(None).is_ok());
        assert!(host(None).check(Some(&here)).is_ok());
        assert!(matches!(
            host(None).check(Some(&elsewhere)),
            Err(CsiError::Refused { code: tonic::Code::ResourceExhausted, .. })
        ));
        assert!(host(None).check(Some(&wanted(&[(STORE, "prod")]))).is_err());
        assert!(host(Some("prod")).check(Some(&wanted(&[(STORE, "prod")]))).is_ok());
        // As an orchestrator sends it for another host: all segments of that host.
        let other = wanted(&[(HOST, "host-2"), (STORE, "prod")]);
        assert!(host(Some("prod")).check(Some(&other)).is_ok());
        assert!(host(Some("test")).check(Some(&other)).is_err());
        assert!(host(None).check(Some(&other)).is_err());
        assert!(host(Some("prod")).check(Some(&elsewhere)).is_err());
        let both = TopologyRequirement {
            requisite: [elsewhere.requisite, here.requisite].concat(),
            preferred: vec![],
        };
        assert!(host(None).check(Some(&both)).is_ok());
    }
}
