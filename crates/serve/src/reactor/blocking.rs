//! What blocks, on threads of its own: files and devices that are about to become a part of the array.
//!
//! One that hangs is waited for no longer than the write deadline, because other changes of members wait meanwhile. Its
//! thread stays behind with whatever it holds.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use uraid_io::member::exists;

use super::Reactor;
use crate::disk::LiveDisk;

/// What is said where the thread breaks.
const NOT_PREPARED: &str = "it could not be prepared";

/// Prepares what is to become a part of the array, and says whether there was nothing at its path before. What is there
/// has the write deadline for it; a new file takes as long as its file system does.
///
/// # Errors
/// If it does not get ready in time.
pub(crate) async fn prepare<D: LiveDisk, T: Send + 'static>(
    reactor: &Reactor<D>,
    path: PathBuf,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, bool)> {
    let name = path.display().to_string();
    let is_new = within_deadline(reactor, &name, move || !exists(&path)).await?;
    let prepared = match is_new {
        true => spawn_blocking(work).await.context(NOT_PREPARED)?,
        false => within_deadline(reactor, &name, work).await?,
    };
    Ok((prepared, is_new))
}

/// Does something with the files and devices that `names` names, within the write deadline.
///
/// # Errors
/// If it takes longer.
pub(crate) async fn within_deadline<D: LiveDisk, T: Send + 'static>(
    reactor: &Reactor<D>,
    names: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let deadline = reactor.engine().deadlines().write;
    let done = spawn_blocking(work);
    let done = match deadline {
        Some(deadline) => timeout(deadline, done).await.map_err(|_| {
            anyhow!("{names} did not get ready within {deadline:?}, the write deadline; the array is as it was")
        })?,
        None => done.await,
    };
    done.context(NOT_PREPARED)
}
