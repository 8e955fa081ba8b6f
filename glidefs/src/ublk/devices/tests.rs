//! The list of devices, on a machine that needs no ublk driver: no device of these numbers exists.

use futures_util::FutureExt;

use super::*;
use crate::cache::Volume;

fn key(number: u32) -> DeviceKey {
    (ExportId(number), DeviceId(4_000_000 + number))
}

/// No device, and workers without threads.
fn devices() -> UblkDevices {
    devices_of(Features::of(&[]))
}

fn devices_of(features: Features) -> UblkDevices {
    let limit = Duration::from_secs(10);
    UblkDevices::new(Vec::new(), features, true, false, 1, limit, HashSet::new())
}

/// Takes a device into the list.
fn host(devices: &UblkDevices, number: u32, gone: Option<QueueGone>) {
    let id = ExportId(number);
    let export = Arc::new(Export::new(id, format!("e-{number}"), 1 << 20, Arc::new(Volume::new(id))));
    let gone = gone.into_iter().map(FutureExt::shared).collect();
    devices.host(key(number), Hosted { export, gone, workers: Vec::new() });
}

#[tokio::test(start_paused = true)]
async fn a_device_that_can_be_neither_started_nor_removed_is_named_and_stays_in_the_list() {
    let devices = devices();
    let (_kept, gone) = tokio::sync::oneshot::channel();
    host(&devices, 1, Some(gone));
    let error = devices.undo(key(1), DeviceError::NoDriver).await;
    assert!(matches!(error, DeviceError::Left { device, .. } if device == key(1).1), "{error}");
    assert!(devices.is_hosted(key(1)));
    let error = devices.undo(key(2), DeviceError::NoDriver).await;
    assert!(matches!(error, DeviceError::NoDriver), "a device that is gone is not left: {error}");
}

#[tokio::test]
async fn on_a_broken_kernel_no_device_is_made() {
    let devices = devices_of(Features::of(&[]).broken());
    let id = ExportId(1);
    let export = Arc::new(Export::new(id, "e-1".into(), 1 << 20, Arc::new(Volume::new(id))));
    let refused = devices.attach(export, DeviceOptions { queues: 1, queue_depth: 1 }, None).await;
    let Err(error @ DeviceError::BrokenKernel { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("allow_broken_kernel"), "{error}");
}
