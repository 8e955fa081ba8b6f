//! The identity service: name, version, services, readiness.
//!
//! Owns the answers about the driver as a whole. Invariant: only services which exist are named.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use super::proto::identity_server::Identity;
use super::proto::plugin_capability::service::Type as ServiceType;
use super::proto::plugin_capability::volume_expansion::Type as ExpansionType;
use super::proto::plugin_capability::{Service as ServiceCapability, Type, VolumeExpansion};
use super::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use super::{DRIVER_NAME, Service};

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER_NAME.into(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let services = [ServiceType::ControllerService, ServiceType::VolumeAccessibilityConstraints];
        let services = services.map(|service| Type::Service(ServiceCapability { r#type: service.into() }));
        let expansion = Type::VolumeExpansion(VolumeExpansion { r#type: ExpansionType::Online.into() });
        let all = services.into_iter().chain([expansion]);
        let capabilities = all.map(|r#type| PluginCapability { r#type: Some(r#type) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// Ready as soon as the daemon has recovered its exports. A daemon which is away is no failure of the driver: whoever restarts
    /// the driver for that only cuts work short.
    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let driver = self.0.clone();
        self.answer("Probe", async move {
            let ready = driver.daemon.status().await.is_ok_and(|status| status.ready);
            Ok(ProbeResponse { ready: Some(ready) })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::client::Client;
    use crate::csi::Options;

    #[tokio::test]
    async fn a_driver_whose_daemon_is_away_is_well_and_not_ready() {
        let options = Options {
            socket: "/x".into(),
            node_id: "host-1".into(),
            shared_store: None,
            node_deployment: false,
        };
        let service = Service::new(Client::of_socket(Path::new("/nonexistent/glidefs.sock")), &options);
        let answer = service.probe(Request::new(ProbeRequest {})).await.unwrap();
        assert_eq!(answer.into_inner().ready, Some(false));
    }
}
