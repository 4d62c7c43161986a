//! Serves content that is only read, and that no engine has: an array of another system.
//!
//! Reads block, so each runs on a thread of the runtime's, a few at a time; the others wait for their turns. The codec
//! refuses whatever would write. There is no control socket: nothing can be changed.

use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use tokio::sync::Semaphore;
use tokio::task::{spawn_blocking, spawn_local};
use uraid_layout::Bytes;
use uraid_nbd::{
    Command, Export, ExportInfo, Extent, Limits, Listener, NbdError, Payload, RateLimits, Rates, ReplySlot, Scheme,
    Server, Tls,
};

use crate::captive::{self, Captive};
use crate::server::Reachable;
use crate::signals::Stops;
use crate::systemd::Notifier;

/// How many reads are under way at a time: enough to keep the disks of an array busy.
const READS_MAX: usize = 16;
/// What content is read in, whatever a client asks for.
const UNIT: Bytes = Bytes(512);

/// Content that can be read, by several threads at a time.
pub trait Content: Send + Sync + 'static {
    /// Fills `buf` with the content from `at` on, all of which is inside of what [`PlainOptions::info`] says.
    ///
    /// # Errors
    /// When it can't be read. Clients get EIO.
    fn read(&self, buf: &mut [u8], at: Bytes) -> io::Result<()>;
}

/// How content is served.
#[derive(Debug)]
pub struct PlainOptions {
    /// What clients are told of it. Whatever it says, nothing can be written.
    pub info: ExportInfo,
    /// What clients may use.
    pub limits: Limits,
    /// How fast clients may go on.
    pub client_rates: RateLimits,
    /// If set, clients are served over TLS alone.
    pub tls: Option<Tls>,
    /// A command that runs as long as the content is served.
    pub run: Option<OsString>,
}

/// Serves content until `stops` asks for the end, or the command ends. `open` opens the sockets; `announce` is called
/// when clients can connect. To be [run](crate::server::run()) in an event loop. Returns how the command has ended, if
/// there is one.
///
/// # Errors
/// If the content can't be served, or the command does not end.
pub async fn serve(
    content: Arc<dyn Content>,
    options: PlainOptions,
    stops: &Stops,
    notifier: Rc<Notifier>,
    open: impl FnOnce() -> Result<Listener>,
    announce: impl FnOnce(&Reachable<'_>) -> Result<()>,
) -> Result<Option<ExitStatus>> {
    let PlainOptions { info, limits, client_rates, tls, run } = options;
    let info = ExportInfo { read_only: true, trim: false, fast_zero: false, ..info };
    let listener = open()?;
    let scheme = if tls.is_some() { Scheme::Nbds } else { Scheme::Nbd };
    let export = Rc::new(Plain { content, info: info.clone(), turns: Arc::new(Semaphore::new(READS_MAX)) });
    let server = Server::new(export, limits, tls)?.paced_by(Arc::new(Rates::new(client_rates)));
    announce(&Reachable { endpoints: listener.endpoints(), scheme, info: &info, unit: UNIT, metrics: None })?;
    notifier.ready();
    let alive = Rc::clone(&notifier);
    spawn_local(async move { alive.keep_alive().await });
    let variables = captive::variables(listener.endpoints(), scheme, &info.name);
    let captive = run.map(|command| Captive::start(&command, &variables)).transpose()?;
    let stop = async {
        tokio::select! {
            () = stops.heard() => {}
            () = Captive::any_ended(captive.as_ref()) => {}
        }
        notifier.stopping();
        captive.iter().for_each(Captive::end);
    };
    server.serve(listener, stop).await;
    Captive::finish(captive, stops.heard()).await
}

/// Content as the codec wants it.
struct Plain {
    content: Arc<dyn Content>,
    info: ExportInfo,
    turns: Arc<Semaphore>,
}

impl Export for Plain {
    type Buffer = Vec<u8>;

    fn info(&self) -> ExportInfo {
        self.info.clone()
    }

    fn buffer(&self, length_bytes: u32) -> Option<Vec<u8>> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(length_bytes as usize).ok()?;
        buffer.resize(length_bytes as usize, 0);
        Some(buffer)
    }

    fn submit(&self, command: Command<Vec<u8>>, reply: ReplySlot<Vec<u8>>) {
        match command {
            Command::Read { span, buffer } => {
                let (content, turns) = (Arc::clone(&self.content), Arc::clone(&self.turns));
                spawn_local(async move {
                    let read = read(content, &turns, buffer, Bytes(span.offset_bytes)).await;
                    reply.done(read.map(Payload::Data));
                });
            }
            Command::BlockStatus { span, .. } => {
                let all = Extent { length_bytes: span.length_bytes, hole: false, zero: false };
                reply.done(Ok(Payload::Extents(vec![all])));
            }
            Command::Flush | Command::Cache { .. } => reply.done(Ok(Payload::None)),
            // The codec does not let them through.
            Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. } => {
                reply.done(Err(NbdError::NotPermitted));
            }
        }
    }

    fn kick(&self) {}
}

/// Reads on another thread, when it is this one's turn.
async fn read(
    content: Arc<dyn Content>,
    turns: &Semaphore,
    mut buffer: Vec<u8>,
    at: Bytes,
) -> Result<Vec<u8>, NbdError> {
    let _turn = turns.acquire().await.map_err(|_| NbdError::Shutdown)?;
    let work = move || {
        content.read(&mut buffer, at)?;
        Ok::<_, io::Error>(buffer)
    };
    let read = spawn_blocking(work).await.map_err(|_| NbdError::Shutdown)?;
    read.map_err(|error| {
        tracing::warn!(at = at.0, %error, "a read failed");
        NbdError::Io
    })
}
