//! The pages of several arrays as one page, on which every sample says which array it is of.

use std::fmt::Write as _;

use super::text::escape;

/// A family of samples: its help and type, and the samples of all pages.
struct Family<'a> {
    name: &'a str,
    head: Vec<&'a str>,
    samples: String,
}

/// The samples of all pages, each page with the name of its array, which becomes the first label. A family's samples
/// are together, as the format requires.
pub(super) fn merged(pages: &[(String, String)]) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    for (array, page) in pages {
        let mut label = "array=\"".to_owned();
        escape(&mut label, array, true);
        label.push('"');
        let mut current = 0;
        for line in page.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let name = comment.split(' ').nth(1).expect("a comment is about a family");
                current = families.iter().position(|family| family.name == name).unwrap_or_else(|| {
                    families.push(Family { name, head: Vec::new(), samples: String::new() });
                    families.len() - 1
                });
                let head = &mut families[current].head;
                if !head.contains(&line) {
                    head.push(line);
                }
            } else {
                let end = line.find(['{', ' ']).expect("a sample has a value");
                let (name, rest) = line.split_at(end);
                let samples = &mut families[current].samples;
                let written = match rest.strip_prefix('{') {
                    Some(rest) => writeln!(samples, "{name}{{{label},{rest}"),
                    None => writeln!(samples, "{name}{{{label}}}{rest}"),
                };
                written.expect("a string takes everything");
            }
        }
    }
    let mut page = String::new();
    for Family { head, samples, .. } in families {
        head.iter().for_each(|line| page += &format!("{line}\n"));
        page += &samples;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_familys_samples_are_together_and_say_whose_they_are() {
        let one =
            "# HELP a A.\n# TYPE a gauge\na 1\n# HELP b B.\n# TYPE b counter\nb{member=\"0\"} 2\nb{member=\"1\"} 3\n";
        let two = "# HELP a A.\n# TYPE a gauge\na 4\n# HELP c C.\n# TYPE c histogram\nc_sum 5\nc_count{x=\"} \"} 6\n";
        let pages = [("x".to_owned(), one.to_owned()), ("y\"z".to_owned(), two.to_owned())];
        let expected = "# HELP a A.\n# TYPE a gauge\na{array=\"x\"} 1\na{array=\"y\\\"z\"} 4\n\
                        # HELP b B.\n# TYPE b counter\nb{array=\"x\",member=\"0\"} 2\nb{array=\"x\",member=\"1\"} 3\n\
                        # HELP c C.\n# TYPE c histogram\nc_sum{array=\"y\\\"z\"} 5\n\
                        c_count{array=\"y\\\"z\",x=\"} \"} 6\n";
        assert_eq!(merged(&pages), expected);
        assert_eq!(merged(&[]), "");
    }
}
