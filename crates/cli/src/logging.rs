//! What the program says of its work, on standard error.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::args::LogFormat;

type Reload = Box<dyn Fn(EnvFilter) -> Result<()> + Send + Sync>;

/// Changes the filter.
static RELOAD: OnceLock<Reload> = OnceLock::new();

/// Begins to say what `URAID_LOG` asks for: warnings and errors, if it does not.
pub(crate) fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_env("URAID_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    let layer = fmt::layer().with_writer(io::stderr).with_target(false);
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(io::stderr().is_terminal()).without_time()).init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
    }
    let _ = RELOAD.set(Box::new(move |filter| Ok(handle.reload(filter)?)));
}

/// Says from now on what is at least of `level`.
pub(crate) fn set(level: &str) -> Result<()> {
    let filter: Option<LevelFilter> = level.parse().ok();
    let filter = filter.with_context(|| {
        format!("a log level is error, warn, info, debug, trace or off, and not '{}'", level.escape_debug())
    })?;
    let reload = RELOAD.get().context("nothing is logged")?;
    reload(EnvFilter::new(filter.to_string()))
}
