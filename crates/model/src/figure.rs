//! Figures: curves over axes that may be logarithmic, and their drawing as SVG.
//!
//! Text is left to the viewer's fonts; none are looked for here. A logarithmic axis is drawn as a linear one of the
//! exponents, so that one way of drawing serves all.

mod plain;

use std::ops::Range;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::{Circle, PathElement, Text};
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::{BLACK, Color as _, IntoFont as _, RGBColor, WHITE};
use serde::Serialize;

/// Width and height of a drawing, in pixels.
pub const SIZE: (u32, u32) = (900, 460);

/// The legend stands beside the curves.
const LEGEND_WIDTH: u32 = 215;

/// Colours that are told apart in print, too; after the last the first is used again.
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
    RGBColor(90, 90, 90),
    RGBColor(227, 119, 194),
    RGBColor(150, 150, 20),
];

/// Curves over two axes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The name of its file, without the extension.
    pub name: String,
    /// What stands above it.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// What it measures, and in which unit.
    pub label: String,
    /// How its values are spaced.
    pub scale: Scale,
    /// From where to where; unless given, as far as the curves go.
    pub range: Option<(f64, f64)>,
}

/// How an axis spaces its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By the power of two.
    Log2,
    /// By the power of ten.
    Log10,
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Its points, by x.
    pub points: Vec<(f64, f64)>,
    /// Where the true values may be: x, the lowest and the highest y. None are drawn unless they are given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<(f64, f64, f64)>,
    /// How it is drawn.
    pub style: Style,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// A line through marked points.
    Line,
    /// A broken line, for what others found.
    Dashed,
    /// Marked points.
    Points,
}

/// An axis as it is drawn, in its scale's own terms.
struct Ruler {
    scale: Scale,
    range: Range<f64>,
    /// Where labels stand.
    ticks: Vec<f64>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ruler, Ruler>>;
type Drawn = Result<(), plotters::drawing::DrawingAreaErrorKind<std::io::Error>>;

impl Axis {
    /// An axis that spaces its values evenly.
    #[must_use]
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear, range: None }
    }

    /// An axis of powers of two.
    #[must_use]
    pub fn log2(label: &str) -> Self {
        Self { scale: Scale::Log2, ..Self::linear(label) }
    }

    /// An axis of powers of ten.
    #[must_use]
    pub fn log10(label: &str) -> Self {
        Self { scale: Scale::Log10, ..Self::linear(label) }
    }

    /// The axis from one value to another.
    #[must_use]
    pub fn over(self, from: f64, to: f64) -> Self {
        Self { range: Some((from, to)), ..self }
    }

    /// The axis for some values.
    fn ruler(&self, values: impl Iterator<Item = f64>) -> Ruler {
        let (from, to) = self.range.unwrap_or_else(|| {
            values
                .filter(|value| self.shows(*value))
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
        });
        let (from, to) = (self.scale.apply(from), self.scale.apply(to));
        let (from, to) = if from.is_finite() && to.is_finite() { (from, to) } else { (0.0, 1.0) };
        let to = if to > from { to } else { from + 1.0 };
        let step = if self.scale == Scale::Linear { round_step((to - from) / 8.0) } else { 1.0 };
        let (first, last) = ((from / step + 1e-9).floor(), (to / step - 1e-9).ceil());
        let ticks = (0..=(last - first) as usize).map(|tick| (first + tick as f64) * step).collect();
        let range = if self.range.is_some() { from..to } else { first * step..last * step };
        Ruler { scale: self.scale, range, ticks }
    }

    /// Whether the axis has a place for a value.
    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }
}

impl Scale {
    fn apply(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log2 => value.log2(),
            Self::Log10 => value.log10(),
        }
    }

    /// The value at a place of the axis, as a label shows it.
    fn label(self, at: f64) -> String {
        let value = match self {
            Self::Linear => at,
            Self::Log2 => at.exp2(),
            Self::Log10 => 10_f64.powf(at),
        };
        let rounded = format!("{value:.4}");
        let short = rounded.trim_end_matches('0').trim_end_matches('.');
        if short == "-0" { "0".to_owned() } else { short.to_owned() }
    }
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * share.clamp(0.0, 1.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let shown = |tick: &&f64| (self.range.start - 1e-9..=self.range.end + 1e-9).contains(*tick);
        self.ticks.iter().filter(shown).copied().collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format(value: &f64) -> String {
        Scale::Linear.label(*value)
    }

    fn format_ext(&self, value: &f64) -> String {
        self.scale.label(*value)
    }
}

impl Series {
    /// A line through marked points.
    #[must_use]
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, intervals: Vec::new(), style: Style::Line }
    }

    /// A broken line, for what others found.
    #[must_use]
    pub(crate) fn dashed(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Dashed, ..Self::line(name, points) }
    }

    /// Marked points.
    #[must_use]
    pub fn points(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Points, ..Self::line(name, points) }
    }

    /// The curve with a bar for each interval: x, the lowest and the highest y.
    #[must_use]
    pub fn with_intervals(self, intervals: Vec<(f64, f64, f64)>) -> Self {
        Self { intervals, ..self }
    }
}

impl Figure {
    /// A figure; `name` is its file's.
    #[must_use]
    pub fn new(name: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self { name: name.to_owned(), title: title.to_owned(), x, y, series }
    }

    /// The drawing, as an SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut out = String::new();
        {
            let area = SVGBackend::with_string(&mut out, SIZE).into_drawing_area();
            self.draw(&area).and_then(|()| area.present()).expect("a string takes everything");
        }
        out.push('\n');
        plain::plain(&out)
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        area.fill(&WHITE)?;
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x = self.x.ruler(points().map(|point| point.0));
        let bars = self.series.iter().flat_map(|series| series.intervals.iter().flat_map(|bar| [bar.1, bar.2]));
        let y = self.y.ruler(points().map(|point| point.1).chain(bars));
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 17))
            .margin(12)
            .margin_right(if self.has_legend() { LEGEND_WIDTH } else { 24 })
            .x_label_area_size(44)
            .y_label_area_size(58)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .axis_desc_style(("sans-serif", 15))
            .label_style(("sans-serif", 13))
            .draw()?;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            self.draw_series(&mut chart, series, *colour)?;
        }
        if self.has_legend() { self.draw_legend(area) } else { Ok(()) }
    }

    fn has_legend(&self) -> bool {
        self.series.len() > 1
    }

    fn draw_legend(&self, area: &Area<'_>) -> Drawn {
        let left = (SIZE.0 - LEGEND_WIDTH + 14) as i32;
        for ((line, series), colour) in (0..).zip(&self.series).zip(COLOURS.iter().cycle()) {
            let y = 48 + 19 * line;
            let stroke = |from, to| PathElement::new(vec![(left + from, y), (left + to, y)], colour.stroke_width(2));
            match series.style {
                Style::Line => area.draw(&stroke(0, 20))?,
                Style::Dashed => [(0, 6), (10, 16)].iter().try_for_each(|&(from, to)| area.draw(&stroke(from, to)))?,
                Style::Points => area.draw(&Circle::new((left + 10, y), 4, colour.filled()))?,
            }
            area.draw(&Text::new(series.name.clone(), (left + 27, y - 7), ("sans-serif", 13).into_font()))?;
        }
        Ok(())
    }

    fn draw_series(&self, chart: &mut Chart<'_, '_>, series: &Series, colour: RGBColor) -> Drawn {
        let shown = series.points.iter().filter(|(x, y)| self.x.shows(*x) && self.y.shows(*y));
        let points: Vec<_> = shown.map(|(x, y)| (self.x.scale.apply(*x), self.y.scale.apply(*y))).collect();
        for &(x, low, high) in &series.intervals {
            if self.x.shows(x) && self.y.shows(low) && self.y.shows(high) {
                let ends = [low, high].map(|y| (self.x.scale.apply(x), self.y.scale.apply(y)));
                chart.draw_series([PathElement::new(ends.to_vec(), colour.stroke_width(1))])?;
            }
        }
        match series.style {
            Style::Dashed => {
                let line = DashedLineSeries::new(points, 6, 4, colour.stroke_width(2));
                chart.draw_series(line)?;
            }
            Style::Line => {
                let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
                chart.draw_series(line)?;
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 2, colour.filled())))?;
            }
            Style::Points => {
                let marks = points.iter().map(|point| Circle::new(*point, 4, colour.filled()));
                chart.draw_series(marks)?;
            }
        }
        Ok(())
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power);
    round.into_iter().find(|round| *round >= step * (1.0 - 1e-9)).unwrap_or(step)
}

#[cfg(test)]
mod tests {
    use super::{Axis, Figure, Ruler, Series, round_step};

    #[test]
    fn labels_stand_at_round_values() {
        assert_eq!([0.9, 1.0, 1.1, 3.0, 70.0, 0.03].map(round_step), [1.0, 1.0, 2.0, 5.0, 100.0, 0.05]);
        let Ruler { range, ticks, .. } = Axis::linear("").ruler([0.0, 68.0].into_iter());
        assert_eq!((range, ticks.len()), (0.0..70.0, 8));
        let Ruler { range, ticks, .. } = Axis::log2("").ruler([1.0, 1024.0].into_iter());
        assert_eq!((range, ticks.len()), (0.0..10.0, 11));
        let Ruler { range, ticks, .. } = Axis::log10("").over(0.05, 30.0).ruler([].into_iter());
        assert!((range.start - -1.301).abs() < 1e-3 && (range.end - 1.4771).abs() < 1e-3);
        assert_eq!(ticks, [-2.0, -1.0, 0.0, 1.0, 2.0]);
    }

    #[test]
    fn a_drawing_is_svg_with_each_curve_its_name_and_labels() {
        let series = vec![
            Series::line("reads", vec![(1.0, 10.0), (1024.0, 100.0)]),
            Series::dashed("the paper", vec![(1.0, 20.0), (1024.0, 90.0)]),
            Series::points("chosen", vec![(32.0, 50.0)]),
        ];
        let figure = Figure::new("f", "A title & more", Axis::log2("unit, KB"), Axis::linear("throughput"), series);
        let svg = figure.svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for word in ["reads", "the paper", "chosen", "A title &amp; more", "unit, KB", "1024", "throughput"] {
            assert!(svg.contains(word), "{word} is missing");
        }
        assert_eq!(svg, figure.svg(), "the same figure is drawn the same");
    }

    #[test]
    fn intervals_are_bars_within_the_axis() {
        let curve = Series::line("", vec![(1.0, 10.0)]).with_intervals(vec![(1.0, 5.0, 7000.0)]);
        let without = Series { intervals: Vec::new(), ..curve.clone() };
        let draw = |y: Axis, curve: &Series| Figure::new("f", "t", Axis::linear("x"), y, vec![curve.clone()]).svg();
        let [with, free] = [&curve, &without].map(|it| draw(Axis::linear("y"), it));
        assert!(with.contains("7000") && !free.contains("7000"), "the axis reaches as far as the bar");
        let [with, free] = [&curve, &without].map(|it| draw(Axis::linear("y").over(0.0, 9000.0), it));
        assert_eq!(with.matches("<polyline").count(), free.matches("<polyline").count() + 1, "{with}");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_figure() {
        let empty =
            Figure::new("f", "t", Axis::log2("x"), Axis::linear("y"), vec![Series::line("s", vec![(0.0, 1.0)])]);
        assert!(empty.svg().contains("</svg>"));
    }
}
