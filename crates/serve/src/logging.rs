//! The program's log, on standard error.

mod flood;

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, reload};

use flood::Flood;

type Reload = Box<dyn Fn(EnvFilter) -> Result<()> + Send + Sync>;

/// Changes the filter.
static RELOAD: OnceLock<Reload> = OnceLock::new();

/// Summarises repeated lines.
static FLOOD: Flood = Flood::new();

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging at the level that `URAID_LOG` sets. The default is warnings and errors.
///
/// # Panics
/// If the process logs already.
pub fn init(format: Format) {
    let filter = EnvFilter::try_from_env("URAID_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter).with(&FLOOD);
    let layer = fmt::layer().with_writer(io::stderr).with_target(false);
    match format {
        Format::Text => registry.with(layer.with_ansi(io::stderr().is_terminal()).without_time()).init(),
        Format::Json => registry.with(layer.json().flatten_event(true)).init(),
    }
    let _ = RELOAD.set(Box::new(move |filter| Ok(handle.reload(filter)?)));
}

/// Summarises repeated lines from now on, until the returned value is dropped; see [`flood`].
pub(crate) fn sum_up() -> Result<flood::Summing> {
    FLOOD.begin().context("can't start a thread")
}

/// Logs messages of at least `level` from now on.
pub(crate) fn set(level: &str) -> Result<()> {
    let filter: Option<LevelFilter> = level.parse().ok();
    let filter = filter.with_context(|| {
        format!("a log level is error, warn, info, debug, trace or off, and not '{}'", level.escape_debug())
    })?;
    let reload = RELOAD.get().context("nothing is logged")?;
    reload(EnvFilter::new(filter.to_string()))
}
