//! The code of a Rust file without what is none: comments, and what literals hold.
//!
//! What is there is found without a parser, so a macro's arguments are code like any other.

/// The text with comments and the insides of string and character literals blanked; line breaks stay.
pub(crate) fn only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank = literal_or_comment(rest, code.chars().next_back());
        let taken = if blank == 0 { first.len_utf8() } else { blank };
        if blank == 0 {
            code.push(first);
        } else {
            code.extend(rest[..taken].chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        }
        rest = &rest[taken..];
    }
    code
}

/// How many bytes of comment or literal `rest` starts with; 0 when it starts with code.
fn literal_or_comment(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    let inside_word = before.is_some_and(|character| character.is_alphanumeric() || character == '_');
    let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')).filter(|_| !inside_word);
    raw.and_then(|after| raw_string(rest, after)).unwrap_or(0)
}

/// Length of a block comment, which can hold others.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        let step = match tail {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of a literal between `quote`s, in which a backslash hides the next character.
fn quoted(rest: &str, quote: char) -> usize {
    let mut hidden = false;
    for (at, character) in rest.char_indices().skip(1) {
        if hidden {
            hidden = false;
        } else if character == '\\' {
            hidden = true;
        } else if character == quote {
            return at + quote.len_utf8();
        }
    }
    rest.len()
}

/// Length of a character literal; 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut following = rest.chars().skip(1);
    match (following.next(), following.next()) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(character), Some('\'')) => 2 + character.len_utf8(),
        _ => 0,
    }
}

/// Length of the raw string `rest`, whose hashes begin at `after`; `None` when it is no raw string.
fn raw_string(rest: &str, after: &str) -> Option<usize> {
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(rest.len() - body.len() + length)
}

#[cfg(test)]
mod tests {
    use super::only;

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "a(\"unsafe \\\" unsafe\"); // unsafe\n/* unsafe /* unsafe */ unsafe */ b('\"', '\\'', r#\"unsafe \
            \" \"#);\n";
        let code = only(text);
        assert!(!code.contains("unsafe"), "{code}");
        assert_eq!(code.lines().count(), 2);
        assert!(code.contains("b("), "{code}");
    }

    #[test]
    fn code_around_literals_stays() {
        let code = only("fn f<'a>(x: &'a str) { g('\\n', \"s\"); unsafe { h() } } // end");
        assert!(code.contains("unsafe { h() }"), "{code}");
        assert!(code.contains("fn f<'a>"), "{code}");
        assert!(!code.contains("end"), "{code}");
    }
}
