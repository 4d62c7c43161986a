//! SVG that viewers show alike: some take `opacity` after `fill="none"` for a black fill, some know no lengths in `em`
//! and some show the line breaks around a text. So there is no opacity, every element says its fill and its stroke, and
//! texts have their places in pixels.

/// The background that translucent colours are mixed with.
const WHITE: f64 = 255.0;

/// How far below its top, in parts of its size, the foot of a line of text is; and half the height of small letters.
const EM: f64 = 1.0;
const EX: f64 = 0.5;

/// The same drawing, as plain as it can be. Every element begins on a line of its own.
pub(super) fn plain(svg: &str) -> String {
    let mut out = String::new();
    let mut is_in_text = false;
    for line in svg.lines() {
        if let Some(element) = line.strip_prefix('<').filter(|element| !element.starts_with('/')) {
            out += &tag(element);
            is_in_text = element.starts_with("text") && !element.ends_with("</text>");
        } else {
            out += line;
            is_in_text &= !line.starts_with("</");
        }
        if !is_in_text {
            out.push('\n');
        }
    }
    out
}

/// An element, of which the name and the attributes are given, as it is written.
fn tag(element: &str) -> String {
    let (name, rest) = element.split_once(' ').unwrap_or((element, ""));
    let (Some(end), true) = (rest.find("/>").or(rest.find('>')), name != "svg") else { return format!("<{element}") };
    let (rest, end) = rest.split_at(end);
    let mut attributes = attributes(rest);
    let number = |attributes: &[(String, String)], name: &str| -> Option<f64> {
        attributes.iter().find(|(key, _)| key == name)?.1.parse().ok()
    };
    let opacity = number(&attributes, "opacity").unwrap_or(1.0);
    attributes.retain(|(key, _)| key != "opacity");
    for paint in ["fill", "stroke"] {
        match attributes.iter_mut().find(|(key, _)| key == paint) {
            Some((_, colour)) => *colour = mixed(colour, opacity),
            None => attributes.push((paint.to_owned(), "none".to_owned())),
        }
    }
    let size = number(&attributes, "font-size");
    let shift = attributes.iter().find(|(key, _)| key == "dy").and_then(|(_, shift)| pixels(shift, size?));
    if let (Some(shift), Some(y)) = (shift, number(&attributes, "y")) {
        attributes.retain(|(key, _)| key != "dy");
        for (_, value) in attributes.iter_mut().filter(|(key, _)| key == "y") {
            *value = format!("{:.1}", y + shift);
        }
    }
    let attributes: String = attributes.iter().map(|(key, value)| format!(" {key}=\"{value}\"")).collect();
    format!("<{name}{attributes}{end}")
}

/// Names and values of `x="1" y="2"/>`.
fn attributes(text: &str) -> Vec<(String, String)> {
    let mut parts = text.split('"');
    let mut attributes = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        attributes.push((name.trim().trim_end_matches('=').to_owned(), value.to_owned()));
    }
    attributes
}

/// A length such as `0.76em`, in pixels, of a text of this size.
fn pixels(length: &str, size: f64) -> Option<f64> {
    let (number, unit) = match length.strip_suffix("em") {
        Some(number) => (number, EM),
        None => (length.strip_suffix("ex")?, EX),
    };
    Some(number.parse::<f64>().ok()? * unit * size)
}

/// A colour such as `#1F77B4` that covers white to this degree.
fn mixed(colour: &str, opacity: f64) -> String {
    let part = |at: usize| u8::from_str_radix(colour.get(at..at + 2)?, 16).ok();
    match (colour.len(), part(1), part(3), part(5)) {
        (7, Some(red), Some(green), Some(blue)) if opacity < 1.0 => {
            let [red, green, blue] =
                [red, green, blue].map(|part| (f64::from(part) * opacity + WHITE * (1.0 - opacity)).round() as u8);
            format!("#{red:02X}{green:02X}{blue:02X}")
        }
        _ => colour.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn opacity_lengths_and_line_breaks_are_gone() {
        let svg = "<svg width=\"9\" viewBox=\"0 0 9 9\">\n<line opacity=\"0.12\" stroke=\"#000000\" x1=\"7\"/>\n\
            <polyline fill=\"none\" opacity=\"1\" stroke=\"#1F77B4\" points=\"1,2 3,4 \"/>\n\
            <text x=\"1\" y=\"10\" dy=\"0.5em\" font-size=\"12\" opacity=\"1\" fill=\"#000000\">\nA &amp; B\n</text>\n\
            </svg>\n";
        let wanted = "<svg width=\"9\" viewBox=\"0 0 9 9\">\n<line stroke=\"#E0E0E0\" x1=\"7\" fill=\"none\"/>\n\
            <polyline fill=\"none\" stroke=\"#1F77B4\" points=\"1,2 3,4 \"/>\n\
            <text x=\"1\" y=\"16.0\" font-size=\"12\" fill=\"#000000\" stroke=\"none\">A &amp; B</text>\n</svg>\n";
        assert_eq!(plain(svg), wanted);
        assert_eq!(plain(wanted), wanted, "what is plain stays");
    }

    /// The figures in `docs/papers` are drawn as plainly.
    #[test]
    fn the_papers_figures_are_plain() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/papers/figures");
        let mut figures = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let svg = std::fs::read_to_string(&path).unwrap();
            assert!(svg == plain(&svg), "{} is drawn again by `cargo xtask papers`", path.display());
            assert!(!svg.contains("opacity") && !svg.contains("em\""), "{}", path.display());
            figures += 1;
        }
        assert!(figures > 30, "{figures}");
    }
}
