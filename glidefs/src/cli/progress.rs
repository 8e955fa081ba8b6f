//! A progress bar on a terminal.
//!
//! Invariant: a dropped bar leaves nothing on the terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error; nothing where standard error is no terminal.
pub(super) struct TerminalBar(Option<ProgressBar>);

impl TerminalBar {
    /// A bar from 0 to `total`, drawn by `template`. Nothing is drawn unless `is_wanted`.
    pub fn new(template: &str, total: u64, is_wanted: bool) -> Self {
        Self((is_wanted && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template(template);
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }))
    }

    /// Moves the bar to `done`.
    pub fn show(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }
}

impl Drop for TerminalBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
