//! Where bytes come from: files, devices, parts of them. They are only read.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use uraid_layout::Bytes;

/// Something that bytes can be read from, by several threads at a time.
pub trait Source: Send + Sync {
    /// How many bytes there are.
    fn size(&self) -> Bytes;

    /// Fills `buf` with the bytes from `at` on.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` beyond the end.
    fn read_at(&self, buf: &mut [u8], at: Bytes) -> io::Result<()>;
}

/// A file or block device that was opened for reading.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size: Bytes,
    identity: (u64, u64),
}

/// Why a path can't be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system says why.
    #[error("it can't be opened: {0}")]
    Io(#[from] io::Error),
    /// It is a directory, a socket, a terminal...
    #[error("it is neither a file nor a block device")]
    Kind,
    /// Another process writes it.
    #[error("another process has it locked to write to it: stop that first")]
    Locked,
}

impl FileSource {
    /// Opens a file or block device for reading.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        // Opening a pipe would wait for its other end.
        let metadata = fs::metadata(path)?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(OpenError::Kind);
        }
        let mut file = File::open(path)?;
        // Metadata of a device have no size.
        let size = Bytes(file.seek(SeekFrom::End(0))?);
        let identity = match kind.is_block_device() {
            true => (u64::MAX, metadata.rdev()),
            false => (metadata.dev(), metadata.ino()),
        };
        Ok(Self { file, size, identity })
    }

    /// The same, with a shared lock for as long as it is open: nobody of ours writes it meanwhile.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_locked(path: &Path) -> Result<Self, OpenError> {
        let source = Self::open(path)?;
        match source.file.try_lock_shared() {
            Ok(()) => Ok(source),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// What tells whether two paths lead to the same file or device.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

impl Source for FileSource {
    fn size(&self) -> Bytes {
        self.size
    }

    fn read_at(&self, buf: &mut [u8], at: Bytes) -> io::Result<()> {
        self.file.read_exact_at(buf, at.0)
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> Bytes {
        Bytes(self.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], at: Bytes) -> io::Result<()> {
        let start = usize::try_from(at.0).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(buf.len())?));
        let bytes = range.and_then(|range| self.get(range)).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

/// A part of something, such as a partition.
#[derive(Clone)]
pub struct Window {
    whole: Arc<dyn Source>,
    start: Bytes,
    size: Bytes,
}

impl Window {
    /// The `size` bytes from `start` on, but for what lies beyond the end.
    #[must_use]
    pub fn new(whole: Arc<dyn Source>, start: Bytes, size: Bytes) -> Self {
        let size = Bytes(size.0.min(whole.size().0.saturating_sub(start.0)));
        Self { whole, start, size }
    }
}

impl Source for Window {
    fn size(&self) -> Bytes {
        self.size
    }

    fn read_at(&self, buf: &mut [u8], at: Bytes) -> io::Result<()> {
        let end = at.0.checked_add(buf.len() as u64);
        let inside = end.is_some_and(|end| end <= self.size.0);
        let start = self.start.0.checked_add(at.0).filter(|_| inside).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.whole.read_at(buf, Bytes(start))
    }
}
