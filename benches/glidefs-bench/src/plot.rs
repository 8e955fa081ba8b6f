//! A picture of the runs: IOPS over queue depth, a line for each engine and load.
//!
//! Owns the drawing, in SVG, without fonts or bitmaps of its own.

use plotters::prelude::*;

use crate::error::BenchError;
use crate::figures::CaseRuns;
use crate::plan::Case;

const SIZE: (u32, u32) = (960, 540);

/// Labels of the depth axis: the powers of two up to the largest possible depth.
const LABELS_MAX: usize = 13;

/// Points of one line: depth and IOPS.
type Points = Vec<(f64, f64)>;

/// A line for each set of cases that differ in depth alone.
fn lines(groups: &[CaseRuns]) -> Vec<(String, Points)> {
    let mut lines: Vec<(Case, Points)> = Vec::new();
    for group in groups.iter().filter(|group| !group.runs.is_empty()) {
        let mut key = group.case;
        key.load.iodepth = 0;
        // Depths are at most a few thousand.
        let depth = u32::try_from(group.case.load.iodepth).map_or(f64::MAX, f64::from);
        let point = (depth.log2(), group.spread(|run| run.iops).mean);
        match lines.iter_mut().find(|(case, _)| *case == key) {
            Some((_, points)) => points.push(point),
            None => lines.push((key, vec![point])),
        }
    }
    let name = |case: Case| {
        let load = case.load;
        format!("{} {} {}k, {} jobs", case.engine, load.mode, load.block_bytes >> 10, load.numjobs)
    };
    lines
        .into_iter()
        .map(|(case, mut points)| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            (name(case), points)
        })
        .collect()
}

pub fn svg(groups: &[CaseRuns]) -> Result<String, BenchError> {
    let mut text = String::new();
    draw(&mut text, &lines(groups)).map_err(|error| BenchError::Plot(error.to_string()))?;
    Ok(text)
}

fn draw(text: &mut String, lines: &[(String, Points)]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let depth_max = points().map(|point| point.0).fold(1.0, f64::max);
    let iops_max = points().map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("glidefs-bench file", ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..depth_max + 0.2, 0.0..iops_max)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(LABELS_MAX)
        .x_desc("operations in flight a job")
        .y_desc("IOPS")
        .x_label_formatter(&|log| {
            if log.fract() == 0.0 { format!("{:.0}", log.exp2()) } else { String::new() }
        })
        .y_label_formatter(&|iops| crate::report::iops(*iops))
        .draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
    }
    if !lines.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    root.present()?;
    Ok(())
}
