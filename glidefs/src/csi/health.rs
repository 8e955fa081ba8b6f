//! The health of volumes and of the daemon.
//!
//! Owns which states are adverse. Invariant: a volume without a known trouble has an empty list, as the specification wants.

use super::error::CsiError;
use super::proto::node_get_storage_health_response::StorageBackendHealth;
use super::proto::volume_health::VolumeHealthEntry;
use super::proto::{StorageHealthErrorType, VolumeHealth, VolumeHealthErrorType};
use crate::api::wire::{Export, Status};

/// The health of an export.
pub(super) fn of_volume(export: &Export) -> VolumeHealth {
    let entry = |status: VolumeHealthErrorType, reason: &str, message: String| VolumeHealthEntry {
        status: status.into(),
        reason: reason.into(),
        message,
    };
    let mut entries = Vec::new();
    match export.state.as_str() {
        "failed" => {
            let reason = export.reason.clone().unwrap_or_else(|| "the last operation failed".into());
            entries.push(entry(VolumeHealthErrorType::Inaccessible, "Failed", reason));
        }
        "waiting" => {
            let reason = "the store does not say whether this host still has the volume".into();
            entries.push(entry(VolumeHealthErrorType::Inaccessible, "WaitsForStore", reason));
        }
        _ => {}
    }
    if let Some(bytes) = export.damaged_bytes.filter(|&bytes| bytes > 0) {
        let message = format!("{bytes} bytes were lost: reads of these fail until they are written again");
        entries.push(entry(VolumeHealthErrorType::DataLoss, "DamagedBytes", message));
    }
    if let Some(resource) = &export.waiting_for {
        let message = format!("writes wait for {resource}");
        entries.push(entry(VolumeHealthErrorType::Degraded, "WritesWait", message));
    }
    VolumeHealth { volume_id: export.name.clone(), health_statuses: entries }
}

/// The health of the daemon, from its answer.
pub(super) fn of_daemon(status: Result<&Status, &CsiError>) -> Vec<StorageBackendHealth> {
    let entry = |status: StorageHealthErrorType, reason: &str, message: String| StorageBackendHealth {
        status: status.into(),
        reason: reason.into(),
        message,
        volume_capability: None,
    };
    match status {
        Err(error) => {
            vec![entry(StorageHealthErrorType::StorageUnreachable, "DaemonAway", error.to_string())]
        }
        Ok(status) => {
            let reason = status.catalog_fails.iter();
            reason
                .map(|reason| entry(StorageHealthErrorType::StorageDegraded, "CatalogFails", reason.clone()))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(more: serde_json::Value) -> Vec<String> {
        let mut text = serde_json::json!({
            "name": "csi-a", "id": 1, "size_bytes": 4096, "device": null, "state": "serving", "reason": null,
            "queues": 1, "queue_depth": 1, "created": "1970-01-01T00:00:00Z",
        });
        text.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let export: Export = serde_json::from_value(text).unwrap();
        of_volume(&export).health_statuses.into_iter().map(|entry| entry.reason).collect()
    }

    #[test]
    fn a_volume_in_service_has_no_adverse_condition() {
        assert!(reasons(serde_json::json!({"damaged_bytes": 0})).is_empty());
    }

    #[test]
    fn all_troubles_of_a_volume_are_told() {
        let troubles = serde_json::json!({"state": "failed", "damaged_bytes": 512, "waiting_for": "log"});
        assert_eq!(reasons(troubles), ["Failed", "DamagedBytes", "WritesWait"]);
        assert_eq!(reasons(serde_json::json!({"state": "waiting"})), ["WaitsForStore"]);
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_storage_that_cannot_be_reached() {
        let health = of_daemon(Err(&CsiError::Broken));
        assert_eq!(health[0].status(), StorageHealthErrorType::StorageUnreachable);
    }
}
