//! Files that users name: text of bounded length.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The longest trace that is read, in bytes.
pub const TRACE_MAX: u64 = 1 << 30;

/// The longest description of a disk or a job, in bytes.
pub const DESCRIPTION_MAX: u64 = 1 << 20;

/// Reads a text of at most `max` bytes.
///
/// # Errors
/// If it can't be read, is longer, or is no text. A device without end is longer.
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {} MiB", max >> 20)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_too_long() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a");
        std::fs::write(&path, "abcd").expect("a file");
        assert_eq!(read_text(&path, 4).expect("it is short enough"), "abcd");
        assert_eq!(read_text(&path, 3).expect_err("it is too long").kind(), io::ErrorKind::FileTooLarge);
        let endless = read_text(Path::new("/dev/zero"), DESCRIPTION_MAX).expect_err("it has no end");
        assert_eq!(endless.to_string(), "it is longer than 1 MiB");
    }
}
