//! One line plot as inline SVG, in a figure with its legend. Knows nothing of training.

use super::{
    axis::{Axis, Spacing},
    text::{escape, step as step_number},
};
use std::fmt::Write;

/// Size of a plot and the box its curves lie in, in SVG units.
const SIZE: (f64, f64) = (440.0, 226.0);
pub(super) const LEFT: f64 = 64.0;
pub(super) const RIGHT: f64 = 422.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = 186.0;

/// Half the width of a digit at the largest size that the style sheet gives to labels.
const HALF_DIGIT: f64 = 4.4;

/// From this many steps on, curves are drawn thin.
const DENSE: usize = 300;

/// More marks than this would hide the curves: they shrink to small heads.
const FULL_HEIGHT_MARKS: usize = 40;

/// A curve: one value a step.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    /// How it is drawn: classes of the style sheet.
    pub(super) class: &'static str,
    /// The column of the table of all steps that holds its values.
    pub(super) column: &'static str,
    /// `None` where a value is not due.
    pub(super) values: Vec<Option<f64>>,
    /// Why a value that is due may have no place on the axis.
    pub(super) gap: &'static str,
}

/// An event after a step.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub(super) step: u64,
    pub(super) class: &'static str,
    pub(super) name: &'static str,
}

/// Everything a plot shows.
#[derive(Debug)]
pub(super) struct Plot<'a> {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What the y axis measures, with its unit.
    pub(super) unit: &'static str,
    pub(super) spacing: Spacing,
    pub(super) steps: &'a [u64],
    pub(super) curves: Vec<Curve>,
    pub(super) marks: &'a [Mark],
    pub(super) threshold: Option<f64>,
    /// Values that the y axis must reach.
    pub(super) reach: &'static [f64],
}

struct Axes {
    x: Axis,
    y: Axis,
}

impl Axes {
    fn x(&self, step: u64) -> f64 {
        LEFT + self.x.position(step as f64) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.y.position(value) * (BOTTOM - TOP)
    }
}

impl Plot<'_> {
    /// The plot with its heading, legend and notes. Needs at least one step.
    pub(super) fn figure(&self) -> String {
        let Self { id, title, .. } = self;
        let last = self.steps.last().map_or_else(String::new, |&last| step_number(last));
        let legend = self.legend();
        let svg = self.svg();
        let notes = self.notes();
        format!(
            r#"<figure id="{id}">
<figcaption><h3>{title}</h3><p class="readout">step <b data-step="">{last}</b></p></figcaption>
<ul class="legend">
{legend}</ul>
<div class="frame">
{svg}</div>
<div>
{notes}</div>
</figure>
"#
        )
    }

    fn svg(&self) -> String {
        let Self { id, title, .. } = self;
        let axes = self.axes();
        let (width, height) = SIZE;
        let empty = if self.shown().next().is_none() { " empty" } else { "" };
        let dense = if self.steps.len() > DENSE { " dense" } else { "" };
        let description = escape(&self.description());
        let mut svg = format!(
            r#"<svg class="plot{empty}{dense}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{id}-title {id}-description">
<title id="{id}-title">{title}</title>
<desc id="{id}-description">{description}</desc>
"#
        );
        self.push_grid(&mut svg, &axes);
        self.push_marks(&mut svg, &axes);
        for curve in &self.curves {
            let path = self.path(curve, &axes);
            if !path.is_empty() {
                let _ = writeln!(svg, r#"<path class="curve {}" d="{path}"/>"#, curve.class);
            }
        }
        let _ = writeln!(svg, r#"<path class="cursor" d="M0 {TOP}V{BOTTOM}"/>"#);
        svg + "</svg>\n"
    }

    fn axes(&self) -> Axes {
        let (first, last) = (self.steps.iter().min(), self.steps.iter().max());
        let x = Axis::steps(first.copied().unwrap_or(0), last.copied().unwrap_or(0));
        let reach = self.reach.iter().copied().chain(self.threshold);
        Axes { x, y: self.spacing.axis(self.shown().chain(reach)) }
    }

    fn shown(&self) -> impl Iterator<Item = f64> {
        self.curves.iter().flat_map(|curve| curve.shown(self.spacing))
    }

    fn push_grid(&self, svg: &mut String, axes: &Axes) {
        let (label_y, middle, foot) = (BOTTOM + 17.0, (LEFT + RIGHT) / 2.0, SIZE.1 - 5.0);
        for tick in &axes.y.ticks {
            let (y, label) = (axes.y(tick.value), &tick.label);
            let _ = writeln!(svg, r#"<path class="grid" d="M{LEFT} {y:.1}H{RIGHT}"/>"#);
            let _ = writeln!(svg, r#"<text class="y" x="{}" y="{y:.1}" dy="0.35em">{label}</text>"#, LEFT - 7.0);
        }
        for tick in &axes.x.ticks {
            let (x, label) = (LEFT + axes.x.position(tick.value) * (RIGHT - LEFT), &tick.label);
            let inside = x.min(SIZE.0 - HALF_DIGIT * label.chars().count() as f64);
            let _ = writeln!(svg, r#"<path class="axis" d="M{x:.1} {BOTTOM}v4"/>"#);
            let _ = writeln!(svg, r#"<text class="x" x="{inside:.1}" y="{label_y}">{label}</text>"#);
        }
        let _ = writeln!(svg, r#"<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>"#);
        let _ = writeln!(svg, r#"<text class="unit" x="0" y="14">{}</text>"#, self.unit);
        let _ = writeln!(svg, r#"<text class="x unit" x="{middle}" y="{foot}">step</text>"#);
        if let Some(threshold) = self.threshold.filter(|&threshold| self.spacing.shows(threshold)) {
            let y = axes.y(threshold);
            let _ = writeln!(svg, r#"<path class="threshold" d="M{LEFT} {y:.1}H{RIGHT}"/>"#);
        }
    }

    fn push_marks(&self, svg: &mut String, axes: &Axes) {
        let (foot, half) = if self.marks.len() > FULL_HEIGHT_MARKS { (TOP, 1.5) } else { (BOTTOM, 4.0) };
        for Mark { step, class, name } in self.marks {
            let (x, step) = (axes.x(*step), step_number(*step));
            let (head, width) = (TOP - 8.0, 2.0 * half);
            let _ = writeln!(
                svg,
                r#"<g class="mark {class}"><title>{name}, after step {step}</title><path class="stem" d="M{x:.1} {TOP}V{foot}"/><path class="head" d="M{x:.1} {TOP}l-{half} -8h{width}z"/><path class="touch" d="M{x:.1} {head}V{foot}"/></g>"#
            );
        }
    }

    /// A line through neighbouring values, broken at every gap; a value between two gaps is a dot.
    fn path(&self, curve: &Curve, axes: &Axes) -> String {
        let place = |(step, value): (&u64, &Option<f64>)| {
            let value = value.filter(|&value| self.spacing.shows(value))?;
            Some((axes.x(*step), axes.y(value)))
        };
        let points: Vec<_> = self.steps.iter().zip(&curve.values).map(place).collect();
        let mut path = String::new();
        for line in points.split(Option::is_none) {
            match line {
                [Some((x, y))] => {
                    let _ = write!(path, "M{:.1} {y:.1}a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0 -3 0", x - 1.5);
                }
                line => {
                    for (at, (x, y)) in line.iter().flatten().enumerate() {
                        let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { "M" } else { "L" });
                    }
                }
            }
        }
        path
    }
}
