//! When a standby gives a successor up.
//!
//! Owns the transitions of a standby. Does not own time, processes nor sockets. Invariant: a standby ends in one of three ways: the
//! successor serves, the successor is given up, or the service is stopped.

use std::time::{Duration, Instant};

use super::message::Message;

/// Longest silence of a successor that takes over.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// Longest time for taking over: as long as the service manager gives a start.
const SERVING_PATIENCE: Duration = Duration::from_mins(30);

/// Something that a standby has noticed.
#[derive(Debug)]
pub(super) enum News {
    Said(Message),
    /// The successor has closed the socket.
    Closed,
    /// The process of the successor has ended.
    Ended(String),
    /// The line that came is no message, or the socket failed.
    NotUnderstood(String),
    /// The service is to stop.
    Stop,
}

/// The next step of a standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// The successor serves: give way.
    GiveWay,
    /// End the successor, and serve again.
    ServeAgain {
        /// The failure of the successor, for the user.
        reason: String,
    },
    /// End the successor in good order, and end.
    Stop,
}

/// A standby's view of the successor.
#[derive(Debug)]
pub(super) struct Watch {
    begun: Instant,
    heard: Instant,
}

impl Watch {
    pub fn new(now: Instant) -> Self {
        Self { begun: now, heard: now }
    }

    /// The step that follows from `news`, or from `None` within the time until `now`.
    pub fn step(&mut self, now: Instant, news: Option<News>) -> Step {
        let again = |reason: String| Step::ServeAgain { reason };
        match news {
            Some(News::Said(Message::Serving)) => return Step::GiveWay,
            Some(News::Said(Message::Failed { reason })) => return again(reason),
            Some(News::Said(Message::Alive)) => self.heard = now,
            Some(News::Said(other)) => return again(format!("the successor said {other:?} out of turn")),
            Some(News::Closed) => return again("the successor closed the socket before it served".into()),
            Some(News::Ended(status)) => {
                return again(format!("the successor ended before it served ({status})"));
            }
            Some(News::NotUnderstood(what)) => return again(what),
            Some(News::Stop) => return Step::Stop,
            None => {}
        }
        if now.duration_since(self.heard) >= SILENCE_MAX {
            return again(format!("the successor said nothing for {} s", SILENCE_MAX.as_secs()));
        }
        if now.duration_since(self.begun) >= SERVING_PATIENCE {
            let minutes = SERVING_PATIENCE.as_secs() / 60;
            return again(format!("the successor did not serve within {minutes} minutes"));
        }
        Step::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(step: Step) -> String {
        match step {
            Step::ServeAgain { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_successor_that_serves_is_given_way_to_and_one_that_fails_is_not() {
        let now = Instant::now();
        let step = |news| Watch::new(now).step(now, Some(news));
        assert_eq!(step(News::Said(Message::Serving)), Step::GiveWay);
        assert_eq!(step(News::Said(Message::Alive)), Step::Wait);
        assert_eq!(step(News::Stop), Step::Stop);
        assert_eq!(reason(step(News::Said(Message::failed("no room")))), "no room");
        assert!(reason(step(News::Closed)).contains("closed"));
        assert!(reason(step(News::Ended("signal: 9".into()))).contains("signal: 9"));
        assert_eq!(reason(step(News::NotUnderstood("nonsense".into()))), "nonsense");
        for out_of_turn in [Message::Ready, Message::Yours, Message::Go { at_nanos: 1 }] {
            assert!(reason(step(News::Said(out_of_turn))).contains("out of turn"));
        }
    }

    #[test]
    fn a_successor_is_given_up_after_a_minute_of_silence() {
        let begun = Instant::now();
        let mut watch = Watch::new(begun);
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(watch.step(after(59), None), Step::Wait);
        assert_eq!(watch.step(after(59), Some(News::Said(Message::Alive))), Step::Wait);
        assert_eq!(watch.step(after(118), None), Step::Wait);
        assert!(reason(watch.step(after(119), None)).contains("said nothing for 60 s"));
    }

    #[test]
    fn a_successor_that_lives_and_never_serves_is_given_up_in_the_end() {
        let begun = Instant::now();
        let mut watch = Watch::new(begun);
        for second in 1..30 * 60 {
            let news = Some(News::Said(Message::Alive));
            assert_eq!(watch.step(begun + Duration::from_secs(second), news), Step::Wait);
        }
        let news = Some(News::Said(Message::Alive));
        assert!(reason(watch.step(begun + Duration::from_mins(30), news)).contains("30 minutes"));
    }
}
