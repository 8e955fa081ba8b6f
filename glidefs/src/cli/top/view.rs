//! The view of `glidefs top`: order, filter, place and keys.
//!
//! Owns the state between two keys. Does not own the figures, nor how they are painted. Invariants: a filter is typed as shown; the
//! chosen place is never behind the last export; unknown figures come last in either order.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::rates::{Rates, Sample};
use crate::cli::args::top::{SortKey, TopArgs};

/// Most characters of a filter: no name of an export is longer.
const FILTER_CHARS_MAX: usize = 128;

/// Whether to go on after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    End,
}

/// The meaning of keys at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Keys are commands, most of them about the order.
    List,
    /// Keys are letters of the filter.
    Filter,
    /// Any key closes the list of keys.
    Help,
}

/// Order, filter and place of the list.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub sort: SortKey,
    /// Whether the order is turned round.
    pub is_reversed: bool,
    pub filter: String,
    pub mode: Mode,
    is_paused: bool,
    /// The place of the first export shown.
    pub first: usize,
    /// Number of exports that fit, as painted last.
    pub page: usize,
}

impl View {
    pub fn new(args: &TopArgs) -> Self {
        Self {
            sort: args.sort,
            is_reversed: false,
            filter: args.filter.clone(),
            mode: Mode::List,
            is_paused: false,
            first: 0,
            page: 1,
        }
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The sample with the exports to show, in order.
    pub fn chosen(&self, sample: &Sample) -> Sample {
        let exports = self.exports(sample).into_iter().cloned().collect();
        Sample { exports, ..sample.clone() }
    }

    /// The exports to show, in order.
    pub fn exports<'a>(&self, sample: &'a Sample) -> Vec<&'a Rates> {
        let filter = self.filter.to_lowercase();
        let matches = |export: &&Rates| export.name.to_lowercase().contains(&filter);
        let mut exports: Vec<_> = sample.exports.iter().filter(matches).collect();
        exports.sort_by(|one, other| self.order(one, other));
        exports
    }

    fn order(&self, one: &Rates, other: &Rates) -> Ordering {
        let by_name = one.name.cmp(&other.name);
        let order = match (figure(self.sort, one), figure(self.sort, other)) {
            _ if self.sort == SortKey::Name => {
                return if self.is_reversed { by_name.reverse() } else { by_name };
            }
            (Some(one), Some(other)) if self.is_reversed => one.total_cmp(&other),
            (Some(one), Some(other)) => other.total_cmp(&one),
            (one, other) => one.is_none().cmp(&other.is_none()),
        };
        order.then(by_name)
    }

    /// Obeys a key, and says whether to go on.
    pub fn press(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Go;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Next::End } else { Next::Go };
        }
        match self.mode {
            Mode::Filter => {
                self.letter(key.code);
                Next::Go
            }
            Mode::Help => {
                self.mode = Mode::List;
                if key.code == KeyCode::Char('q') { Next::End } else { Next::Go }
            }
            Mode::List => self.command(key.code),
        }
    }

    fn command(&mut self, code: KeyCode) -> Next {
        match code {
            KeyCode::Char('q') => return Next::End,
            KeyCode::Char('n') => self.sort_by(SortKey::Name),
            KeyCode::Char('i') => self.sort_by(SortKey::Iops),
            KeyCode::Char('b') => self.sort_by(SortKey::Bandwidth),
            KeyCode::Char('l') => self.sort_by(SortKey::Latency),
            KeyCode::Char('d') => self.sort_by(SortKey::Dirty),
            KeyCode::Char('r') => self.sort_by(SortKey::Risk),
            KeyCode::Char('w') => self.sort_by(SortKey::Waits),
            KeyCode::Char('o') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('h' | '?') => self.mode = Mode::Help,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.first = self.first.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first = self.first.saturating_add(self.page),
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.page),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            _ => {}
        }
        Next::Go
    }

    fn letter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(letter);
            }
            _ => {}
        }
        self.first = 0;
    }

    fn sort_by(&mut self, sort: SortKey) {
        (self.sort, self.is_reversed, self.first) = (sort, false, 0);
    }

    /// Fits the place to `count` exports, of which `page` can be shown.
    pub fn fit(&mut self, count: usize, page: usize) {
        self.page = page.max(1);
        self.first = self.first.min(count.saturating_sub(self.page));
    }
}

/// The figure to sort by.
fn figure(sort: SortKey, export: &Rates) -> Option<f64> {
    match sort {
        SortKey::Name => None,
        SortKey::Iops => export.iops,
        SortKey::Bandwidth => Some(export.read_bytes? + export.written_bytes?),
        SortKey::Latency => export.p99_nanoseconds,
        SortKey::Dirty => Some(export.dirty_bytes as f64),
        SortKey::Risk => Some(export.at_risk_seconds as f64),
        SortKey::Waits => export.wait_nanoseconds,
    }
}
