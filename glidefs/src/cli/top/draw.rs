//! The screen of `glidefs top`, painted anew for each sample and key.
//!
//! Owns places and colours. Invariant: without colours everything is told by words as well.

use std::time::Duration;

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use super::line;
use super::rates::{Rates, Sample};
use super::view::{Mode, View};
use crate::api::wire::Top;
use crate::cli::args::top::SortKey;

/// Most alerts shown with a line of their own.
const ALERT_LINES_MAX: usize = 3;
/// Widths of the columns behind the name.
const WIDTHS: [u16; 9] = [6, 7, 7, 7, 7, 4, 7, 5, 7];

const HELP: &str = "\
n  sort by name             o  turn the order round
i  by IOPS                  /  filter by name: Enter keeps, Esc ends
b  by bytes a second        p  pause
l  by latency, p99          Up Down PgUp PgDn Home End  move
d  by dirty bytes           q  quit
r  by age of data at risk
w  by waits                 any key closes this";

/// The figures to be painted, and the pace.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub now: &'a Top,
    pub sample: &'a Sample,
    /// Why the last question had no answer.
    pub trouble: Option<&'a str>,
    pub interval: Duration,
}

/// The styles of a screen, with colours or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    title: Style,
    dim: Style,
    warning: Style,
    critical: Style,
}

impl Paint {
    pub fn new(has_colours: bool) -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        if has_colours {
            Self {
                title: bold.fg(Color::Cyan),
                dim: plain.fg(Color::DarkGray),
                warning: bold.fg(Color::Yellow),
                critical: bold.fg(Color::Red),
            }
        } else {
            Self { title: bold, dim: plain, warning: bold, critical: bold.add_modifier(Modifier::REVERSED) }
        }
    }
}

/// Paints `frame` as `view` wants.
pub(super) fn draw(screen: &mut ratatui::Frame<'_>, frame: &Frame<'_>, view: &mut View, paint: &Paint) {
    let alerts = alert_lines(frame, paint);
    let alerts_height = u16::try_from(alerts.len()).unwrap_or(0);
    let [head, alert_area, table, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(alerts_height),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(screen.area());
    let [first, second, third] = line::host(frame.now, frame.sample);
    let host = Text::from(vec![Line::styled(first, paint.title), second.into(), third.into()]);
    screen.render_widget(Paragraph::new(host), head);
    screen.render_widget(Paragraph::new(alerts), alert_area);
    let exports = view.exports(frame.sample);
    view.fit(exports.len(), usize::from(table.height.saturating_sub(1)));
    let shown: Vec<&Rates> = exports.iter().copied().skip(view.first).take(view.page).collect();
    screen.render_widget(rows(&shown, view, paint), table);
    let last = view.first + shown.len();
    screen.render_widget(Line::styled(foot_text(frame, view, last, exports.len()), paint.dim), foot);
    if view.mode == Mode::Help {
        help(screen);
    }
}

fn alert_lines(frame: &Frame<'_>, paint: &Paint) -> Vec<Line<'static>> {
    let alerts = &frame.now.alerts;
    let style = |severity: &str| if severity == "critical" { paint.critical } else { paint.warning };
    let mut lines: Vec<Line<'_>> = line::alerts(frame.now)
        .into_iter()
        .zip(alerts)
        .take(ALERT_LINES_MAX)
        .map(|(text, alert)| Line::styled(text, style(&alert.severity)))
        .collect();
    if alerts.len() > ALERT_LINES_MAX {
        lines
            .push(Line::styled(format!("and {} more alerts", alerts.len() - ALERT_LINES_MAX), paint.warning));
    }
    if let Some(trouble) = frame.trouble {
        lines.push(Line::styled(format!("no answer, these figures are old: {trouble}"), paint.critical));
    }
    lines
}

fn rows(exports: &[&Rates], view: &View, paint: &Paint) -> Table<'static> {
    let heads = ["NAME"].into_iter().chain(line::HEADS);
    let sorted = match view.sort {
        SortKey::Name => &[0][..],
        SortKey::Iops => &[1],
        SortKey::Bandwidth => &[2, 3],
        SortKey::Latency => &[5],
        SortKey::Dirty => &[7],
        SortKey::Risk => &[8],
        SortKey::Waits => &[9],
    };
    let head = heads.enumerate().map(|(place, head)| {
        let style =
            if sorted.contains(&place) { paint.title.add_modifier(Modifier::UNDERLINED) } else { paint.dim };
        let text = Line::styled(head, style);
        Cell::from(if place == 0 { text } else { text.right_aligned() })
    });
    let row = |export: &&Rates| {
        let style = match export.state.as_str() {
            "failed" => paint.critical,
            _ if export.waiting_for.is_some() => paint.warning,
            _ if export.iops == Some(0.0) && export.in_flight == 0 => paint.dim,
            _ => Style::new(),
        };
        let figures = line::cells(export).map(|text| Cell::from(Line::from(text).right_aligned()));
        Row::new([Cell::from(line::name(export))].into_iter().chain(figures)).style(style)
    };
    let widths = [Constraint::Min(12)].into_iter().chain(WIDTHS.map(Constraint::Length));
    Table::new(exports.iter().map(row), widths).header(Row::new(head)).column_spacing(1)
}

fn foot_text(frame: &Frame<'_>, view: &View, last: usize, count: usize) -> String {
    if view.mode == Mode::Filter {
        return format!("filter: {}_   Enter keeps, Esc ends", view.filter);
    }
    let place =
        if count == 0 { "no exports".into() } else { format!("{}-{last} of {count}", view.first + 1) };
    let filter =
        if view.filter.is_empty() { String::new() } else { format!("  filter: {} (Esc ends)", view.filter) };
    let pace =
        if view.is_paused() { "paused".into() } else { format!("every {} s", frame.interval.as_secs_f64()) };
    format!("{place}{filter}  {pace}  sort: n i b l d r w  /filter p?q")
}

fn help(screen: &mut ratatui::Frame<'_>) {
    let area = screen.area();
    let lines = HELP.lines();
    let width = lines.clone().map(str::len).max().unwrap_or(0) + 4;
    let wanted =
        (u16::try_from(width).unwrap_or(u16::MAX), u16::try_from(lines.count() + 2).unwrap_or(u16::MAX));
    let (width, height) = (wanted.0.min(area.width), wanted.1.min(area.height));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    screen.render_widget(Clear, place);
    screen.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" Keys ")), place);
}
