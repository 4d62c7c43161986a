//! The files of the study: writes them into a file system, and reads them as processes would.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uraid_layout::Bytes;
use uraid_model::papers::hauser::SIZES_KIB;
use uraid_random::Random;

use crate::{Error, native};

/// The paper's sizes are in KB of 1024 bytes, its megabytes have 1000 of them: what one has in 10^6 bytes.
pub(super) const MB: f64 = 1.024;

/// Files in one directory. ext4 spreads directories over the volume.
const DIRECTORY: usize = 100;

/// So many files of the paper's sizes, as many of each.
pub(super) struct Collection {
    count: usize,
}

/// What processes needed.
pub(super) struct Reading {
    /// Files that were read.
    pub(super) files: u64,
    /// The mean time of one.
    pub(super) mean_s: f64,
}

impl Collection {
    pub(super) fn new(count: usize) -> Self {
        Self { count }
    }

    /// All content.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes((0..self.count).map(|index| size(index) as u64).sum())
    }

    /// Writes the files into an empty file system.
    pub(super) fn write(&self, root: &Path) -> Result<(), Error> {
        let content = native::content();
        for index in 0..self.count {
            let path = path(root, index);
            if let Some(directory) = path.parent().filter(|_| index % DIRECTORY == 0) {
                fs::create_dir(directory).map_err(Error::io("make the directory", directory))?;
            }
            let begin = index * SECTOR % (content.len() - size(index));
            let write = || File::create_new(&path)?.write_all(&content[begin..begin + size(index)]);
            write().map_err(Error::io("write", &path))?;
        }
        Ok(())
    }

    /// Has processes read files in random order, each file at most once. They begin files for so many seconds, or until
    /// there is none left.
    pub(super) fn read(&self, root: &Path, processes: usize, seconds: u64, seed: u64) -> Result<Reading, Error> {
        let mut order: Vec<usize> = (0..self.count).collect();
        Random::new(seed).shuffle(&mut order);
        let (next, started) = (AtomicUsize::new(0), Barrier::new(processes));
        let process = || -> Result<(u64, Duration), Error> {
            let (mut files, mut total, mut buffer) = (0, Duration::ZERO, Vec::new());
            started.wait();
            let end = Instant::now() + Duration::from_secs(seconds);
            while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let begun = Instant::now();
                if begun >= end {
                    break;
                }
                read_whole(&path(root, index), size(index), &mut buffer)?;
                total += begun.elapsed();
                files += 1;
            }
            Ok((files, total))
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..processes).map(|_| scope.spawn(process)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a process does not panic")).collect()
        });
        let (mut files, mut total) = (0, Duration::ZERO);
        for result in results {
            let (read, time) = result?;
            files += read;
            total += time;
        }
        Ok(Reading { files, mean_s: total.as_secs_f64() / files.max(1) as f64 })
    }
}

const SECTOR: usize = 512;

/// Size of a file in bytes.
fn size(index: usize) -> usize {
    (SIZES_KIB[index % SIZES_KIB.len()] << 10) as usize
}

fn path(root: &Path, index: usize) -> PathBuf {
    root.join(format!("{:05}", index / DIRECTORY)).join(format!("{index:07}"))
}

/// Reads a file in one piece, as the paper's processes do.
fn read_whole(path: &Path, size: usize, buffer: &mut Vec<u8>) -> Result<(), Error> {
    buffer.clear();
    buffer.reserve(size + 1);
    let read = File::open(path).and_then(|mut file| file.read_to_end(buffer)).map_err(Error::io("read", path))?;
    if read == size {
        Ok(())
    } else {
        Err(Error::Refused(format!("{} has {read} bytes instead of {size}: the array lost content", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_they_were_written_once_each() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = Collection::new(120);
        assert_eq!(files.bytes(), Bytes((12 * 1625) << 10));
        files.write(directory.path()).expect("they are written");
        let found = files.read(directory.path(), 3, 60, 1).expect("they are read");
        assert_eq!(found.files, 120);
        assert!(found.mean_s > 0.0);
        assert_eq!(fs::read_dir(directory.path()).expect("directories").count(), 2);
        let last = path(directory.path(), 119);
        File::options().write(true).open(&last).and_then(|file| file.set_len(7)).expect("it is cut");
        let error = files.read(directory.path(), 2, 60, 1).err().expect("one file is too short");
        assert!(error.to_string().contains("7 bytes instead of 281600"), "{error}");
    }
}
