//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use uraid_io::format::UnixSeconds;

/// Now.
///
/// # Errors
/// If the clock is set before 1970.
pub fn now() -> Result<UnixSeconds> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is set before 1970")?;
    Ok(UnixSeconds(since.as_secs()))
}
