//! Volumes which are on this host for the time of a call, where hosts share the store.
//!
//! Owns the bringing and the giving back. Invariants: nothing is made from a volume, and nothing of it deleted, unless this host has the
//! volume; a host which has a volume only for a call lets the others have it afterwards.

use crate::api::wire::Export;
use crate::csi::Driver;
use crate::csi::error::CsiError;
use crate::csi::operations::Operation;
use crate::router::ExportName;

/// A volume which is on this host.
#[derive(Debug)]
pub(super) struct Visit {
    pub export: Export,
    /// Whether the call brought the volume here.
    is_guest: bool,
    /// Keeps pods from using the volume meanwhile.
    _mounts: Option<Operation>,
}

impl Driver {
    /// Has the volume on this host, or refuses when another host has it.
    pub(super) async fn visit(&self, name: &ExportName) -> Result<Visit, CsiError> {
        let mounts = match &self.host.shared_store {
            Some(_) => Some(self.operations.hold_mounts(name)?),
            None => None,
        };
        Ok(Visit { _mounts: mounts, ..self.visit_locked(name).await? })
    }

    /// As [`Driver::visit`], for a call which keeps others from the mounts of the volume itself.
    pub(super) async fn visit_locked(&self, name: &ExportName) -> Result<Visit, CsiError> {
        let before = self.daemon.find(name).await?;
        let had_device = before.is_some_and(|export| export.device.is_some());
        let (_, export) = self.open_here(name.as_str()).await?;
        Ok(Visit { export, is_guest: self.host.shared_store.is_some() && !had_device, _mounts: None })
    }

    /// Lets other hosts have the volume again, if the call brought it here.
    pub(super) async fn give_back(&self, visit: Visit) -> Result<(), CsiError> {
        if !visit.is_guest {
            return Ok(());
        }
        let name = ExportName::new(&visit.export.name).map_err(|_| CsiError::Broken)?;
        match self.daemon.detach(&name).await?.unreleased {
            None => Ok(()),
            Some(reason) => Err(CsiError::later(format!("volume {name} is not released: {reason}"))),
        }
    }
}
