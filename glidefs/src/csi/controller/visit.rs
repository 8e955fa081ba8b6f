//! Volumes which are on this host for the time of a call, where hosts share the store.
//!
//! Owns the bringing and the giving back. Invariants: nothing is made from a volume, and nothing of it deleted, unless this host has the
//! volume; a host which has a volume only for a call lets the others have it afterwards.

use crate::api::wire::Export;
use crate::csi::Driver;
use crate::csi::error::CsiError;
use crate::router::ExportName;

/// A volume which is on this host.
#[derive(Debug)]
pub(super) struct Visit {
    pub export: Export,
    /// Whether the call brought the volume here.
    is_guest: bool,
}

impl Driver {
    /// Does `work` with the volume on this host, or refuses when another host has it. Pods do not use the volume meanwhile.
    pub(super) async fn visiting<T>(
        &self,
        name: &ExportName,
        work: impl AsyncFnOnce(Export) -> Result<T, CsiError>,
    ) -> Result<T, CsiError> {
        let _mounts = match &self.host.shared_store {
            Some(_) => Some(self.operations.hold_mounts(name)?),
            None => None,
        };
        let visit = self.visit(name).await?;
        let done = work(visit.export.clone()).await;
        self.give_back(name, &visit).await?;
        done
    }

    /// Has the volume on this host, for a call which keeps others from its mounts.
    pub(super) async fn visit(&self, name: &ExportName) -> Result<Visit, CsiError> {
        let before = self.daemon.find(name).await?;
        let had_device = before.is_some_and(|export| export.device.is_some());
        let export = self.open_here(name).await?;
        Ok(Visit { export, is_guest: self.host.shared_store.is_some() && !had_device })
    }

    /// Lets other hosts have the volume again, if the call brought it here.
    pub(super) async fn give_back(&self, name: &ExportName, visit: &Visit) -> Result<(), CsiError> {
        if visit.is_guest {
            self.daemon.release(name).await?;
        }
        Ok(())
    }
}
