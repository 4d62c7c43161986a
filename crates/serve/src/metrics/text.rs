//! Prometheus' text format, version 0.0.4: families of samples, each with its help and type.

use std::fmt::{Display, Write as _};

use uraid_io::histogram::Histogram;

/// The format's media type.
pub(super) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Names and values that distinguish the samples of a family.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Text {
    out: String,
}

/// One family, to which samples are added.
#[derive(Debug)]
pub(super) struct Family<'a> {
    out: &'a mut String,
    name: &'a str,
}

impl Text {
    /// Begins a counter, whose name ends in `_total`.
    pub(super) fn counter<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, "counter", help)
    }

    /// Begins a gauge.
    pub(super) fn gauge<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, "gauge", help)
    }

    /// Begins a histogram of durations, whose name ends in `_seconds`.
    pub(super) fn histogram<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, "histogram", help)
    }

    /// The complete text.
    pub(super) fn finish(self) -> String {
        self.out
    }

    fn family<'a>(&'a mut self, name: &'a str, kind: &str, help: &str) -> Family<'a> {
        self.out.push_str("# HELP ");
        self.out.push_str(name);
        self.out.push(' ');
        escape(&mut self.out, help, false);
        self.out.push_str("\n# TYPE ");
        self.out.push_str(name);
        self.out.push(' ');
        self.out.push_str(kind);
        self.out.push('\n');
        Family { out: &mut self.out, name }
    }
}

impl Family<'_> {
    /// Adds a sample.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    /// Adds a histogram's samples.
    pub(super) fn durations(&mut self, labels: Labels<'_>, histogram: &Histogram) {
        for (bound, count) in Histogram::bounds().zip(histogram.cumulative()) {
            let bound = bound.as_secs_f64().to_string();
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_bucket", labels, Some("+Inf"), histogram.count());
        self.line("_sum", labels, None, histogram.sum().as_secs_f64());
        self.line("_count", labels, None, histogram.count());
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: impl Display) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            self.out.push(before);
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(self.out, value, true);
            self.out.push('"');
            before = ',';
        }
        if before == ',' {
            self.out.push('}');
        }
        writeln!(self.out, " {value}").expect("a string takes everything");
    }
}

/// Appends a text as labels and helps have it.
pub(super) fn escape(out: &mut String, text: &str, is_quoted: bool) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if is_quoted => out.push_str("\\\""),
            character => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_people_chose_is_escaped() {
        let mut text = Text::default();
        text.gauge("a_info", "one\\two\nthree \"four\"").sample(&[("name", "a\"b\\c\nd"), ("level", "5")], 1);
        let expected = "# HELP a_info one\\\\two\\nthree \"four\"\n# TYPE a_info gauge\n\
                        a_info{name=\"a\\\"b\\\\c\\nd\",level=\"5\"} 1\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn histograms_are_cumulative_and_in_seconds() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::from_micros(20));
        histogram.record(Duration::from_secs(20));
        let mut text = Text::default();
        text.histogram("a_seconds", "a").durations(&[("kind", "b")], &histogram);
        let text = text.finish();
        for line in [
            "a_seconds_bucket{kind=\"b\",le=\"0.000016\"} 0",
            "a_seconds_bucket{kind=\"b\",le=\"0.000032\"} 1",
            "a_seconds_bucket{kind=\"b\",le=\"8.388608\"} 1",
            "a_seconds_bucket{kind=\"b\",le=\"+Inf\"} 2",
            "a_seconds_sum{kind=\"b\"} 20.00002",
            "a_seconds_count{kind=\"b\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
