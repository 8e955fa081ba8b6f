//! Keys against a map that knows what has to be true.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize),
    End(usize),
    Fail(usize),
    CutOff(usize),
    Wait(u64),
    Restart,
    Reboot,
    /// A crash while these requests are under way.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..4_usize;
    prop_oneof![
        6 => (key.clone(), 0..2_usize).prop_map(|(key, body)| Step::Send(key, body)),
        4 => key.clone().prop_map(Step::End),
        2 => key.clone().prop_map(Step::Fail),
        1 => key.prop_map(Step::CutOff),
        2 => (1..15_u64).prop_map(|hours| Step::Wait(hours * HOUR)),
        1 => Just(Step::Restart),
        1 => Just(Step::Reboot),
        1 => Just(Step::Crash),
    ]
}

/// What has to be true of a key.
#[derive(Debug)]
enum Known {
    UnderWay(usize, KeyUnderWay),
    /// The body, and for how many milliseconds more.
    Done(usize, u64),
    Unknown(usize, u64),
    /// As a key whose time was over before a boot: forgotten, or kept anew where nothing had removed it.
    Perhaps(usize),
}

struct World {
    kept: Kept,
    known: HashMap<usize, Known>,
    /// The bodies of keys whose time is over.
    over: HashMap<usize, usize>,
}

impl World {
    async fn take(&mut self, step: Step) {
        let name = |key: usize| format!("key {key}");
        match step {
            Step::Send(key, body) => {
                let text = body.to_string();
                let admission = self.kept.ask(&name(key), &text);
                let found = match (admission, self.known.get(&key)) {
                    (Admission::Admitted(mut under_way), None | Some(Known::Perhaps(_))) => {
                        under_way.begun().await.unwrap();
                        self.over.remove(&key);
                        self.known.insert(key, Known::UnderWay(body, under_way));
                        return;
                    }
                    (found, _) => found,
                };
                match (found, self.known.get(&key).unwrap()) {
                    (
                        Admission::Reused,
                        Known::UnderWay(other, _)
                        | Known::Done(other, _)
                        | Known::Unknown(other, _)
                        | Known::Perhaps(other),
                    ) => assert_ne!(body, *other),
                    (Admission::InUse, Known::UnderWay(same, _))
                    | (Admission::Unknown, Known::Unknown(same, _) | Known::Perhaps(same)) => {
                        assert_eq!(body, *same);
                    }
                    (Admission::Done(answer), Known::Done(same, _) | Known::Perhaps(same)) => {
                        assert_eq!((body, answer.body.as_ref()), (*same, Some(&text)));
                    }
                    (found, known) => panic!("{key}: {found:?} instead of {known:?}"),
                }
            }
            Step::End(key) | Step::Fail(key) | Step::CutOff(key) => {
                let Some(Known::UnderWay(..)) = self.known.get(&key) else { return };
                let Some(Known::UnderWay(body, under_way)) = self.known.remove(&key) else { return };
                match step {
                    Step::End(_) => {
                        under_way.done(answer(&body.to_string())).await;
                        self.known.insert(key, Known::Done(body, KEEP_MILLIS));
                    }
                    Step::Fail(_) => under_way.free().await,
                    _ => {
                        drop(under_way);
                        self.known.insert(key, Known::Unknown(body, KEEP_MILLIS));
                    }
                }
            }
            Step::Wait(millis) => {
                self.kept.hands.pass(millis);
                let over = &mut self.over;
                self.known.retain(|key, known| match known {
                    Known::UnderWay(..) | Known::Perhaps(_) => true,
                    Known::Done(body, left) | Known::Unknown(body, left) => {
                        *left = left.saturating_sub(millis);
                        if *left == 0 {
                            over.insert(*key, *body);
                        }
                        *left > 0
                    }
                });
            }
            Step::Restart | Step::Reboot | Step::Crash => {
                for (key, known) in std::mem::take(&mut self.known) {
                    let known = match known {
                        Known::UnderWay(body, under_way) => {
                            std::mem::forget(under_way);
                            Known::Unknown(body, KEEP_MILLIS)
                        }
                        // Of another boot, keys count anew.
                        Known::Done(body, _) if matches!(step, Step::Reboot) => {
                            Known::Done(body, KEEP_MILLIS)
                        }
                        Known::Unknown(body, _) if matches!(step, Step::Reboot) => {
                            Known::Unknown(body, KEEP_MILLIS)
                        }
                        known => known,
                    };
                    self.known.insert(key, known);
                }
                if matches!(step, Step::Reboot) {
                    let over = std::mem::take(&mut self.over);
                    self.known.extend(over.into_iter().map(|(key, body)| (key, Known::Perhaps(body))));
                }
                if matches!(step, Step::Reboot) { self.kept.reboot() } else { self.kept.restart() }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_key_is_admitted_twice_while_its_request_is_known(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut world = World { kept: Kept::new(), known: HashMap::new(), over: HashMap::new() };
            for step in steps {
                world.take(step).await;
            }
            for (_, known) in world.known.drain() {
                if let Known::UnderWay(_, under_way) = known {
                    under_way.free().await;
                }
            }
        });
    }
}
