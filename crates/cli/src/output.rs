//! Files that commands write for people.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// Writes a document to a file that only this user can read. An existing file is replaced only if it is empty or begins
/// with the same `opening`, so that a slip does not destroy a member of an array.
///
/// # Errors
/// If the path leads to other existing content, or can't be written. Nothing is changed then.
pub(crate) fn save(path: &Path, text: &str, opening: &str) -> Result<()> {
    let name = path.display();
    let failed = || format!("can't write {name}");
    let kind = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            return file.and_then(|mut file| file.write_all(text.as_bytes())).with_context(failed);
        }
        Err(error) => return Err(error).with_context(failed),
    };
    if kind.is_dir() {
        bail!("{name} is a directory: name a file in it");
    }
    ensure!(!kind.is_block_device(), "{name} is a block device: name a file");
    let mut file = OpenOptions::new().read(kind.is_file()).write(true).open(path).with_context(failed)?;
    if kind.is_file() {
        let is_ours = begins_with(&file, opening).with_context(failed)?;
        ensure!(is_ours, "{name} holds something else: name another file, or remove that one first");
        file.set_len(0).with_context(failed)?;
    }
    file.write_all(text.as_bytes()).with_context(failed)
}

/// Whether a file is empty, or begins with `opening`. Leaves the file at its start.
fn begins_with(mut file: &File, opening: &str) -> std::io::Result<bool> {
    let mut first = Vec::new();
    file.take(opening.len() as u64).read_to_end(&mut first)?;
    std::io::Seek::rewind(&mut file)?;
    Ok(first.is_empty() || first == opening.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_overwritten_but_what_was_written_for_the_same_purpose() {
        let directory = tempfile::tempdir().unwrap();
        let [new, other, link] = ["new", "other", "link"].map(|name| directory.path().join(name));
        save(&new, "<svg>one</svg>", "<svg").unwrap();
        save(&new, "<svg/>", "<svg").unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), "<svg/>");
        fs::write(&other, [0; 4096]).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        for path in [&other, &link] {
            let refused = save(path, "<svg/>", "<svg").unwrap_err();
            assert!(refused.to_string().contains("holds something else"), "{refused}");
            assert_eq!(fs::read(&other).unwrap(), [0; 4096]);
        }
        assert!(save(directory.path(), "<svg/>", "<svg").unwrap_err().to_string().contains("is a directory"));
        save(Path::new("/dev/null"), "<svg/>", "<svg").unwrap();
    }
}
