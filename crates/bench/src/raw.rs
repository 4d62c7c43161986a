//! Files read and written in order, as `dd` does it: what a medium can do without any array.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::OFlags;

/// Bytes of a transfer.
const BLOCK: usize = 1 << 20;
/// What direct I/O may want memory to be aligned to.
const ALIGNMENT: usize = 4096;

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Movers {
    /// One thread, a block of each file in turn.
    One,
    /// A thread for each file.
    OneEach,
}

/// Reads `length` bytes of each of `sources` and writes as many to each of `targets`, without the page cache; the time
/// until all of it is durable.
pub(crate) fn copy(sources: &[PathBuf], targets: &[PathBuf], length: u64, movers: Movers) -> anyhow::Result<Duration> {
    let read = sources.iter().map(|path| Stream::open(path, false));
    let written = targets.iter().map(|path| Stream::open(path, true));
    let mut streams = read.chain(written).collect::<anyhow::Result<Vec<Stream>>>()?;
    let begun = Instant::now();
    match movers {
        Movers::One => {
            for offset in (0..length).step_by(BLOCK) {
                for stream in &mut streams {
                    stream.step(offset)?;
                }
            }
        }
        Movers::OneEach => std::thread::scope(|scope| {
            let threads = streams.iter_mut().map(|stream| {
                scope.spawn(move || (0..length).step_by(BLOCK).try_for_each(|offset| stream.step(offset)))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a stream does not panic"))
        })?,
    }
    for stream in streams.iter().filter(|stream| stream.is_target) {
        stream.file.sync_data()?;
    }
    Ok(begun.elapsed())
}

/// A file that is read or written in order.
struct Stream {
    file: File,
    is_target: bool,
    memory: Vec<u8>,
    /// Where its aligned part begins.
    start: usize,
}

impl Stream {
    fn open(path: &Path, is_target: bool) -> anyhow::Result<Self> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("an open flag is a C int");
        let mut options = OpenOptions::new();
        options.read(!is_target).write(is_target).create(is_target).custom_flags(flags);
        let file = options.open(path).with_context(|| format!("opening {} for direct I/O", path.display()))?;
        let mut memory = vec![0x5a; BLOCK + ALIGNMENT];
        let start = memory.as_mut_ptr().align_offset(ALIGNMENT);
        Ok(Self { file, is_target, memory, start })
    }

    fn step(&mut self, offset: u64) -> anyhow::Result<()> {
        let block = &mut self.memory[self.start..][..BLOCK];
        if self.is_target {
            self.file.write_all_at(block, offset).context("writing in order")
        } else {
            self.file.read_exact_at(block, offset).context("reading in order")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn all_of_it_is_read_and_written() {
        let scratch = Scratch::create(Path::new("/dev/shm")).unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::write(path("source"), vec![1; 3 * BLOCK]).unwrap();
        for (target, movers) in [("one", Movers::One), ("each", Movers::OneEach)] {
            copy(&[path("source")], &[path(target)], 3 * BLOCK as u64, movers).unwrap();
            assert_eq!(fs::metadata(path(target)).unwrap().len(), 3 * BLOCK as u64);
            let error = copy(&[path("source")], &[path(target)], 4 * BLOCK as u64, movers).unwrap_err();
            assert!(error.to_string().contains("reading"), "{error}");
        }
        assert!(copy(&[path("absent")], &[], BLOCK as u64, Movers::One).is_err());
    }
}
