//! A document as one page that needs nothing else: styles and figures are within it.

use super::block::{Block, Table, Value};

const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1a1a1a; --back: #ffffff; --soft: #f2f4f7; --line: #d5d9e0; --mark: #0b62b8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --back: #16181c; --soft: #22262d; --line: #3b414b; --mark: #7cb8f5; }
  figure svg { filter: invert(0.92) hue-rotate(180deg); }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.lead { border-left: 4px solid var(--mark); background: var(--soft); padding: 0.6rem 1rem; font-size: 1.1rem; }
.lead p { margin: 0.3rem 0; }
figure { margin: 1rem 0; }
figure svg { width: 100%; height: auto; display: block; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { text-align: right; padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; white-space: normal; }
td.best { color: var(--mark); font-weight: 700; }
code { background: var(--soft); padding: 0 0.2rem; }
";

/// The page.
pub(super) fn render(title: &str, blocks: &[Block]) -> String {
    let title = escaped(title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n<h1>{title}</h1>\n"
    );
    for block in blocks {
        out += &match block {
            Block::Heading(text) => format!("<h2>{}</h2>\n", escaped(text)),
            Block::Text(text) => format!("<p>{}</p>\n", code(text)),
            Block::Lead(lines) => {
                let lines: String = lines.iter().map(|line| format!("<p>{}</p>\n", code(line))).collect();
                format!("<div class=\"lead\">\n{lines}</div>\n")
            }
            Block::Table(table) => render_table(table),
            Block::Figure(figure) => {
                format!("<figure aria-label=\"{}\">\n{}</figure>\n", escaped(&figure.title), scalable(&figure.svg()))
            }
        };
    }
    out + "</html>\n"
}

/// The drawing with a view box instead of a size, so that it fills its place.
fn scalable(svg: &str) -> String {
    let has_view_box = svg.lines().next().is_some_and(|line| line.contains("viewBox"));
    let (width, height) = uraid_model::figure::SIZE;
    if has_view_box {
        svg.to_owned()
    } else {
        svg.replacen("<svg", &format!("<svg viewBox=\"0 0 {width} {height}\""), 1)
    }
}

fn render_table(table: &Table) -> String {
    let caption = match table.title.as_str() {
        "" => String::new(),
        title => format!("<caption>{}</caption>\n", escaped(title)),
    };
    let heads: String = table.columns.iter().map(|name| format!("<th>{}</th>", escaped(name))).collect();
    // Two columns are a name and a text.
    let kind = if table.columns.len() == 2 { " class=\"text\"" } else { "" };
    let mut rows = String::new();
    for (name, values) in &table.rows {
        let value = |value: &Value| {
            let kind = if value.is_best { " class=\"best\"" } else { kind };
            format!("<td{kind}>{}</td>", escaped(&value.text))
        };
        let values: String = values.iter().map(value).collect();
        rows += &format!("<tr><td>{}</td>{values}</tr>\n", escaped(name));
    }
    format!("<div class=\"table\"><table>\n{caption}<tr>{heads}</tr>\n{rows}</table></div>\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text in which backquotes set code apart.
fn code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let part = |(index, part)| {
        if index % 2 == 1 { format!("<code>{}</code>", escaped(part)) } else { escaped(part) }
    };
    parts.map(part).collect()
}
