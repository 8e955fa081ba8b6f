//! The terminal while `glidefs top` has it, and the keys typed there.
//!
//! Invariant: the terminal is given back when a [`Screen`] is dropped, and before the message of a panic: a panic of the shipped program
//! drops nothing.

use std::io;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use tokio::sync::mpsc;

/// How often the thread that reads keys looks whether anybody wants keys.
const LOOK: Duration = Duration::from_millis(100);
/// Most events that wait to be obeyed.
const EVENTS_MAX: usize = 64;

/// The terminal in the mode for whole screens.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    events: mpsc::Receiver<Event>,
}

impl Screen {
    /// Takes the terminal. A hook for panics gives the terminal back before the message.
    pub fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init()?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        // Reading a terminal blocks.
        drop(tokio::task::spawn_blocking(move || read(&sender)));
        Ok(Self { terminal, events })
    }

    pub fn draw(&mut self, paint: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(paint).map(drop)
    }

    /// The next key; `None` when there will be no more. A change of the size ends the wait with a key that means nothing.
    pub async fn key(&mut self) -> Option<KeyEvent> {
        match self.events.recv().await? {
            Event::Key(key) => Some(key),
            _ => Some(KeyEvent::from(event::KeyCode::Null)),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.events.close();
        ratatui::restore();
    }
}

/// Reads events until nobody wants them, or the terminal is gone.
fn read(sender: &mpsc::Sender<Event>) {
    while !sender.is_closed() {
        let Ok(has_event) = event::poll(LOOK) else { return };
        if !has_event {
            continue;
        }
        let Ok(event) = event::read() else { return };
        if sender.blocking_send(event).is_err() {
            return;
        }
    }
}
