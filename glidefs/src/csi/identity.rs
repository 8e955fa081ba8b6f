//! The identity service: name, version, services, readiness.
//!
//! Owns the answers about the driver as a whole. Invariant: only services which exist are named.

use std::collections::HashMap;

use super::error::CsiError;
use super::proto::identity_server::Identity;
use super::proto::plugin_capability::service::Type as ServiceType;
use super::proto::plugin_capability::volume_expansion::Type as ExpansionType;
use super::proto::plugin_capability::{Service as ServiceCapability, Type, VolumeExpansion};
use super::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use super::{Answer, DRIVER_NAME, Driver, Service, calls};

calls!(Identity, {
    get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse = plugin_info;
    get_plugin_capabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse = plugin_capabilities;
    probe(ProbeRequest) -> ProbeResponse = probe;
}, refused {});

#[allow(clippy::unused_async, reason = "every call of a table is awaited")]
impl Driver {
    async fn plugin_info(&self, _: GetPluginInfoRequest) -> Result<GetPluginInfoResponse, CsiError> {
        Ok(GetPluginInfoResponse {
            name: DRIVER_NAME.into(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            manifest: HashMap::new(),
        })
    }

    async fn plugin_capabilities(
        &self,
        _: GetPluginCapabilitiesRequest,
    ) -> Result<GetPluginCapabilitiesResponse, CsiError> {
        let services = [ServiceType::ControllerService, ServiceType::VolumeAccessibilityConstraints];
        let services = services.map(|service| Type::Service(ServiceCapability { r#type: service.into() }));
        let expansion = Type::VolumeExpansion(VolumeExpansion { r#type: ExpansionType::Online.into() });
        let all = services.into_iter().chain([expansion]);
        let capabilities = all.map(|r#type| PluginCapability { r#type: Some(r#type) }).collect();
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }

    /// Ready as soon as the daemon has recovered its exports. A daemon which is away is no failure of the driver: whoever restarts
    /// the driver for that only cuts work short.
    async fn probe(&self, _: ProbeRequest) -> Result<ProbeResponse, CsiError> {
        Ok(ProbeResponse { ready: Some(self.daemon.status().await.is_ok_and(|status| status.ready)) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tonic::Request;

    use super::*;
    use crate::client::Client;
    use crate::csi::HostTopology;

    #[tokio::test]
    async fn a_driver_whose_daemon_is_away_is_well_and_not_ready() {
        let host = HostTopology { node_id: "host-1".into(), shared_store: None };
        let service = Service::new(Client::of_socket(Path::new("/nonexistent/glidefs.sock")), host, false);
        let answer = service.probe(Request::new(ProbeRequest {})).await.unwrap();
        assert_eq!(answer.into_inner().ready, Some(false));
    }
}
