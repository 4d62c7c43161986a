//! A placement as an SVG document that looks the same in browsers, librsvg and ImageMagick: no style sheets, no
//! opacity, and each element has its own fill and stroke.

use std::fmt::Write as _;

use uraid_layout::draw::{Line, Picture, Unit, UnitKind};

/// Size of a chunk, in pixels.
const WIDTH: usize = 64;
const HEIGHT: usize = 28;
/// Space around the picture.
const MARGIN: usize = 16;
/// Approximate width of a letter, to reserve room for texts.
const LETTER: usize = 8;
/// Distance from the top of a line to the baseline of its letters.
const FOOT: usize = 19;

const INK: &str = "#1a1a1a";
const FRAME: &str = "#808080";
const BACKGROUND: &str = "#ffffff";

/// Alignment of a text at its position.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
}

/// The document.
pub(super) fn svg(picture: &Picture, title: &str, legend: &[(&str, &str)]) -> String {
    let labels = picture.lines.iter().map(|line| line.label.chars().count()).max().unwrap_or(0);
    let left = MARGIN + if labels > 0 { labels * LETTER + MARGIN } else { 0 };
    let top = MARGIN + 2 * HEIGHT;
    let bottom = top + picture.lines.len() * HEIGHT;
    let signs = legend.iter().map(|(sign, _)| sign.chars().count()).max().unwrap_or(0);
    let texts = legend.iter().map(|(_, meaning)| signs + meaning.chars().count() + 4).chain([title.chars().count()]);
    let right = (left + picture.members.len() * WIDTH).max(MARGIN + texts.max().unwrap_or(0) * LETTER);
    let (width, height) = (right + MARGIN, bottom + MARGIN + legend.len() * HEIGHT + MARGIN);

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
         {height}\">\n"
    );
    rectangle(&mut out, (0, 0), (width, height), BACKGROUND, "none");
    text(&mut out, (MARGIN, MARGIN + FOOT), Anchor::Start, title);
    for (member, name) in picture.members.iter().enumerate() {
        let middle = left + member * WIDTH + WIDTH / 2;
        text(&mut out, (middle, top - HEIGHT + FOOT), Anchor::Middle, name);
    }
    for (row, Line { label, stripe, units }) in picture.lines.iter().enumerate() {
        let y = top + row * HEIGHT;
        if !label.is_empty() {
            text(&mut out, (MARGIN, y + FOOT), Anchor::Start, label);
        }
        for (member, Unit { name, kind }) in units.iter().enumerate() {
            let x = left + member * WIDTH;
            rectangle(&mut out, (x, y), (WIDTH, HEIGHT), colour(*kind, stripe.0.is_multiple_of(2)), FRAME);
            text(&mut out, (x + WIDTH / 2, y + FOOT), Anchor::Middle, name);
        }
    }
    for (line, (sign, meaning)) in legend.iter().enumerate() {
        let y = bottom + MARGIN + line * HEIGHT + FOOT;
        text(&mut out, (MARGIN, y), Anchor::Start, sign);
        text(&mut out, (MARGIN + (signs + 2) * LETTER, y), Anchor::Start, meaning);
    }
    out + "</svg>\n"
}

/// The colour of a unit. Adjacent stripes have slightly different colours.
fn colour(kind: UnitKind, is_even: bool) -> &'static str {
    match (kind, is_even) {
        (UnitKind::Data, true) => "#dcebf7",
        (UnitKind::Data, false) => "#c3dcf0",
        (UnitKind::Copy, true) => "#e3f2e1",
        (UnitKind::Copy, false) => "#cde7c9",
        (UnitKind::Parity, true) => "#fde3c8",
        (UnitKind::Parity, false) => "#fbd0a3",
        (UnitKind::Unused, _) => "#eeeeee",
    }
}

fn rectangle(out: &mut String, (x, y): (usize, usize), (width, height): (usize, usize), fill: &str, stroke: &str) {
    let place = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
    writeln!(out, "<rect {place} fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1\"/>")
        .expect("a string takes every write");
}

fn text(out: &mut String, (x, y): (usize, usize), anchor: Anchor, text: &str) {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
    };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-family=\"sans-serif\" font-size=\"14\" \
         fill=\"{INK}\" stroke=\"none\">{text}</text>"
    )
    .expect("a string takes every write");
}
