//! A document as Markdown.

use super::block::{Block, Table, Value};

/// The document; figures are files beside it.
pub(super) fn render(title: &str, blocks: &[Block]) -> String {
    let mut out = format!("# {title}\n");
    for block in blocks {
        out.push('\n');
        out += &match block {
            Block::Heading(text) => format!("## {text}\n"),
            Block::Text(text) => format!("{text}\n"),
            Block::Lead(lines) => lines.iter().map(|line| format!("- **{line}**\n")).collect(),
            Block::Table(table) => render_table(table),
            Block::Figure(figure) => format!("![{}](figures/{}.svg)\n", figure.title, figure.name),
        };
    }
    out
}

fn render_table(table: &Table) -> String {
    let escaped = |text: &str| text.replace('|', "\\|");
    let mut out = if table.title.is_empty() { String::new() } else { format!("**{}**\n\n", table.title) };
    let heads: Vec<String> = table.columns.iter().map(|name| escaped(name)).collect();
    out += &format!("| {} |\n|---{}|\n", heads.join(" | "), "|---".repeat(heads.len().saturating_sub(1)));
    for (name, values) in &table.rows {
        let value = |value: &Value| {
            let text = escaped(&value.text);
            if value.is_best { format!("**{text}**") } else { text }
        };
        let values: Vec<String> = values.iter().map(value).collect();
        out += &format!("| {} | {} |\n", escaped(name), values.join(" | "));
    }
    out
}
