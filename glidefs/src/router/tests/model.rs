//! Random operations, failures, restarts and reboots against a model of the answers that users got.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fake::{Fault, Host, create, drop_last};
use crate::router::Users;
use crate::router::{ExportSize, RouterError, State};

#[derive(Clone, Debug)]
enum Step {
    Create {
        name: usize,
        sectors: u64,
    },
    Attach {
        name: usize,
    },
    Detach {
        name: usize,
    },
    Resize {
        name: usize,
        sectors: u64,
    },
    Delete {
        name: usize,
    },
    /// From now on the call fails, before or after it was carried out.
    Break {
        call: usize,
        after: bool,
    },
    Mend,
    Restart,
    Reboot,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const CALLS: [&str; 5] = ["attach", "find", "recover", "detach", "resize"];

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        4 => (name.clone(), 1_u64..4).prop_map(|(name, sectors)| Step::Create { name, sectors }),
        3 => name.clone().prop_map(|name| Step::Attach { name }),
        3 => name.clone().prop_map(|name| Step::Detach { name }),
        3 => (name.clone(), 1_u64..6).prop_map(|(name, sectors)| Step::Resize { name, sectors }),
        3 => name.prop_map(|name| Step::Delete { name }),
        2 => (0..CALLS.len(), any::<bool>()).prop_map(|(call, after)| Step::Break { call, after }),
        2 => Just(Step::Mend),
        1 => Just(Step::Restart),
        1 => Just(Step::Reboot),
    ]
}

/// An export according to the answers that users got.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    id: u32,
    sectors: u64,
    wish: Wish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Attached,
    Detached,
    /// An attach failed, and the wish may have been written or not.
    Either,
    /// A delete failed.
    Deleted,
}

async fn run(steps: Vec<Step>) {
    let mut host = Host::new();
    let mut router = host.started().await;
    let mut model: BTreeMap<&str, Known> = BTreeMap::new();
    let mut id_last = 0;
    for step in steps {
        match step.clone() {
            Step::Create { name, sectors } => {
                let name = NAMES[name];
                let result = router.create(create(name, sectors * 512)).await;
                match (model.get(name), result) {
                    (Some(known), Ok(created)) => {
                        assert!(created.existed && known.sectors == sectors);
                        assert_eq!(created.info.id.0, known.id);
                    }
                    (Some(known), Err(RouterError::OtherParameter { .. })) => {
                        assert_ne!(known.sectors, sectors);
                    }
                    (Some(_), Err(_)) => {}
                    (None, result) => {
                        let info = router.show(name).unwrap();
                        assert!(info.id.0 > id_last, "ids are never given twice");
                        id_last = info.id.0;
                        assert_eq!(result.is_ok(), info.state == State::Serving);
                        model.insert(name, Known { id: info.id.0, sectors, wish: Wish::Attached });
                    }
                }
            }
            Step::Attach { name } => {
                let name = NAMES[name];
                let result = router.attach(name, true).await;
                match model.get_mut(name) {
                    None => assert!(matches!(result, Err(RouterError::NotFound { .. }))),
                    Some(known) if known.wish == Wish::Deleted => {
                        assert!(matches!(result, Err(RouterError::HalfDeleted { .. })));
                    }
                    Some(known) if result.is_ok() => known.wish = Wish::Attached,
                    Some(known) if known.wish == Wish::Detached => known.wish = Wish::Either,
                    Some(_) => {}
                }
            }
            Step::Detach { name } => {
                let name = NAMES[name];
                let result = router.detach(name, Users::Spare).await;
                match model.get_mut(name) {
                    None => assert!(matches!(result, Err(RouterError::NotFound { .. }))),
                    Some(known) if known.wish == Wish::Deleted => {
                        assert!(matches!(result, Err(RouterError::HalfDeleted { .. })));
                    }
                    Some(known) => known.wish = Wish::Detached,
                }
            }
            Step::Resize { name, sectors } => {
                let name = NAMES[name];
                let result = router.resize(name, ExportSize::new(sectors * 512).unwrap()).await;
                match model.get_mut(name) {
                    None => assert!(matches!(result, Err(RouterError::NotFound { .. }))),
                    Some(known) if known.wish == Wish::Deleted => {
                        assert!(matches!(result, Err(RouterError::HalfDeleted { .. })));
                    }
                    Some(known) if sectors < known.sectors => {
                        assert!(matches!(result, Err(RouterError::Shrink { .. })));
                    }
                    Some(known) => known.sectors = sectors,
                }
            }
            Step::Delete { name } => {
                let name = NAMES[name];
                if router.delete(name, Users::Spare).await.is_ok() {
                    model.remove(name);
                } else {
                    model.get_mut(name).unwrap().wish = Wish::Deleted;
                }
            }
            Step::Break { call, after } => {
                host.kernel.fault(CALLS[call], if after { Fault::FailAfter } else { Fault::Fail });
            }
            Step::Mend => host.kernel.faults.lock().unwrap().clear(),
            Step::Restart | Step::Reboot => {
                drop_last(router);
                host.kernel.daemon_died();
                if matches!(step, Step::Reboot) {
                    host.reboot();
                }
                router = host.started().await;
                model.retain(|_, known| known.wish != Wish::Deleted);
                assert!(
                    router.list().iter().all(|info| matches!(info.state, State::Serving | State::Detached))
                );
            }
        }
        check(&host, &router, &model);
    }
    // After any history a start without faults gives every export the device it should have.
    drop_last(router);
    host.kernel.daemon_died();
    let router = host.started().await;
    model.retain(|_, known| known.wish != Wish::Deleted);
    check(&host, &router, &model);
    let devices = host.kernel.devices().clone();
    let serving = router.list().into_iter().filter(|info| info.state == State::Serving);
    let expected: BTreeMap<u32, _> =
        serving.map(|info| (info.device.unwrap().0, (info.id, info.size_bytes))).collect();
    let found: BTreeMap<u32, _> = devices.iter().map(|(&n, d)| (n, (d.export, d.size_bytes))).collect();
    assert_eq!(found, expected, "no device without an export, none too many, all of the right size");
    assert!(devices.values().all(|device| !device.quiesced));
}

/// Checks the router against the model. Holds after every step.
fn check(host: &Host, router: &crate::router::Router, model: &BTreeMap<&str, Known>) {
    let listed = router.list();
    let names: Vec<_> = listed.iter().map(|info| info.name.as_str().to_owned()).collect();
    assert_eq!(names, model.keys().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    for info in listed {
        let known = &model[info.name.as_str()];
        assert_eq!((info.id.0, info.size_bytes), (known.id, known.sectors * 512));
        match (known.wish, &info.state) {
            (_, State::Failed { .. })
            | (Wish::Attached | Wish::Either, State::Serving)
            | (Wish::Detached | Wish::Either, State::Detached) => {}
            (wish, state) => panic!("{wish:?} and {state}"),
        }
        if info.state == State::Serving {
            let device = &host.kernel.devices()[&info.device.unwrap().0];
            assert_eq!(device.export, info.id, "a device never shows another export");
            assert!(device.size_bytes <= info.size_bytes, "a device is never larger than its export");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn users_are_told_the_truth_and_a_start_always_mends(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
