//! The start while the steps of some exports take long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fake::{Host, create, drop_last};
use crate::router::{Router, State};
use crate::units::ExportId;

const MIB: u64 = 1 << 20;

/// Returns when so many exports are served.
async fn served(router: &Router, exports: usize) {
    let served = async {
        while router.list().iter().filter(|info| info.state == State::Serving).count() < exports {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), served).await.expect("an export waits for another one");
}

#[tokio::test]
async fn an_export_whose_device_is_slow_holds_up_no_other() {
    for slow in [1, 5] {
        let host = Host::new();
        let router = host.started().await;
        for number in 0..6 {
            router.create(create(&format!("e{number}"), MIB)).await.unwrap();
        }
        drop_last(router);
        host.kernel.daemon_died();
        // The last three have noticed nothing of the daemon's death.
        for number in 3..6 {
            host.kernel.devices().get_mut(&number).unwrap().quiesced = false;
        }
        host.kernel.slow.lock().unwrap().insert(ExportId(slow));
        tokio::time::pause();
        let router = host.router();
        let starting = tokio::spawn({
            let router = Arc::clone(&router);
            async move { router.start().await }
        });
        served(&router, 5).await;
        assert!(!starting.is_finished());
        host.kernel.resumed.0.add_permits(2);
        let report = starting.await.unwrap();
        assert_eq!((report.recovered, report.failed), (6, 0));
        tokio::time::resume();
    }
}

#[tokio::test]
async fn the_pause_of_a_device_is_told_after_a_hand_over_and_after_no_other_start() {
    let mut host = Host::new();
    let router = host.started().await;
    router.create(create("a", MIB)).await.unwrap();
    drop_last(router);
    host.kernel.daemon_died();
    host.options.waiting_since = Some(Instant::now());
    let router = host.started().await;
    router.create(create("b", MIB)).await.unwrap();
    let pause = router.show("a").unwrap().pause;
    assert!(pause.is_some());
    assert_eq!(router.show("b").unwrap().pause, None, "the device did not wait");
    assert_eq!(router.pauses(), Vec::from_iter(pause));
    drop_last(router);
    host.kernel.daemon_died();
    host.options.waiting_since = None;
    assert!(host.started().await.pauses().is_empty(), "nobody knows how long the devices waited");
}
