//! `glidefs top`: the exports that do most, in a terminal, as lines or as JSON.
//!
//! Owns the loop: ask, wait, show, obey keys. The parts: `rates` makes rates of two answers, `view` knows order, filter and keys, `draw`
//! paints, `screen` has the terminal, `line` is the text of `--once`. Invariants: the daemon is asked once an interval, whatever is
//! typed; nothing is changed in the daemon; the terminal is given back however the command ends.

#![allow(clippy::cast_precision_loss, reason = "figures for people, not for arithmetic that must be exact")]

mod draw;
mod line;
mod rates;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use self::draw::{Frame, Paint};
use self::rates::Sample;
use self::screen::Screen;
use self::view::{Next, View};
use super::args::top::TopArgs;
use super::error::CliError;
use super::print::emit;
use crate::api::wire::Top;
use crate::client::{Client, ClientError};

/// Shows the figures of the daemon until told to end.
pub(super) async fn run(client: &Client, args: TopArgs) -> Result<(), CliError> {
    let first: Top = ask(client, Instant::now()).await?;
    let (interval, json, once) = (args.interval.0, args.json, args.once);
    if json || once {
        return print(client, first, View::new(&args), interval, (json, once)).await;
    }
    if !std::io::stdout().is_terminal() {
        return Err(CliError::NoTerminal);
    }
    watch(client, first, View::new(&args), interval).await
}

/// The figures, asked for at `when`.
async fn ask(client: &Client, when: Instant) -> Result<Top, ClientError> {
    sleep_until(when).await;
    client.get("/v1/top").await
}

/// Prints samples: one, or one an interval.
async fn print(
    client: &Client,
    mut before: Top,
    view: View,
    interval: Duration,
    (json, once): (bool, bool),
) -> Result<(), CliError> {
    let mut next = Instant::now() + interval;
    loop {
        let now = ask(client, next).await?;
        let sample = Sample::of(Some(&before), &now);
        let text = if json {
            serde_json::to_string(&view.chosen(&sample))? + "\n"
        } else {
            line::text(&now, &sample, &view)
        };
        emit(text.as_bytes())?;
        if once {
            return Ok(());
        }
        before = now;
        next = Instant::now().max(next + interval);
    }
}

/// Shows samples on the whole terminal.
async fn watch(client: &Client, first: Top, mut view: View, interval: Duration) -> Result<(), CliError> {
    let paint = Paint::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()));
    let mut ends = Ends::new().map_err(CliError::Terminal)?;
    let mut screen = Screen::open().map_err(CliError::Terminal)?;
    let (mut sample, mut now, mut trouble) = (Sample::of(None, &first), first, None);
    let mut asking = Box::pin(ask(client, Instant::now() + interval));
    loop {
        let frame = Frame { now: &now, sample: &sample, trouble: trouble.as_deref(), interval };
        screen.draw(|area| draw::draw(area, &frame, &mut view, &paint)).map_err(CliError::Terminal)?;
        tokio::select! {
            answer = &mut asking => {
                match answer {
                    Ok(_) if view.is_paused() => {}
                    Ok(answer) => {
                        sample = Sample::of(Some(&now), &answer);
                        (now, trouble) = (answer, None);
                    }
                    Err(error) => trouble = Some(error.to_string()),
                }
                asking = Box::pin(ask(client, Instant::now() + interval));
            }
            key = screen.key() => match key.map(|key| view.press(key)) {
                Some(Next::Go) => {}
                // Without keys nobody could end the command.
                Some(Next::End) | None => return Ok(()),
            },
            () = ends.next() => return Ok(()),
        }
    }
}

/// The signals that end a command with a terminal.
struct Ends([Signal; 3]);

impl Ends {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
