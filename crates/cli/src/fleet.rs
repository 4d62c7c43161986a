//! Several reactors for one array, each on a thread of its own.
//!
//! The calling thread is the keeper's: it accepts connections, which are served in turn by all, and in the end marks
//! the members clean. The order of a stop:
//! 1. Every thread's connections end, and every request that has parts elsewhere.
//! 2. When that is so everywhere, nobody sends requests any more: the followers flush what they have, through the
//!    keeper, and end.
//! 3. The keeper closes the array; where somebody could not flush, it only flushes its own.
//!
//! A thread that fails before that ends the process, as a single reactor's failure does; what is on the members is then
//! what a crash leaves.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use tokio::sync::{Barrier, mpsc};
use tokio::task::LocalSet;
use uraid_io::array::{Array, Follower};
use uraid_io::bands::Bands;
use uraid_nbd::{Connections, Dispatcher, ExportInfo, Incoming, Limits, Listener, Server};

use crate::reactor::{Address, KEEPER, Reactor, Settings};
use crate::serve::warn_unless;

/// The reactors, ready to serve.
pub(crate) struct Fleet {
    keeper: Rc<Reactor>,
    /// Of each reactor's clients.
    limits: Limits,
    dispatcher: Dispatcher,
    incoming: Incoming,
    steps: Arc<Barrier>,
    followers: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Ended>,
}

/// How a follower's thread ended: whether it could flush in the end, unless it failed before.
type Ended = Result<Result<()>>;

/// What a follower's thread begins with.
struct Beginning {
    follower: Follower,
    address: Address,
    incoming: Incoming,
    info: ExportInfo,
    settings: Settings,
    steps: Arc<Barrier>,
}

impl Fleet {
    /// Starts `reactors` threads, this one counted.
    pub(crate) async fn start(array: Array, info: &ExportInfo, settings: Settings, reactors: u8) -> Result<Self> {
        let bands = Bands::new(&array.geometry, reactors);
        let (dispatcher, mut incoming) = Dispatcher::new(reactors.into(), settings.limits(reactors.into()));
        let mut addresses = Address::all(bands);
        let steps = Arc::new(Barrier::new(reactors.into()));
        let (sender, ended) = mpsc::channel(reactors.into());
        let first = KEEPER.index() + 1;
        let begin = |(address, incoming): (Address, Incoming)| {
            let (follower, info, steps) = (array.follower(), info.clone(), Arc::clone(&steps));
            let beginning = Beginning { follower, address, incoming, info, settings, steps };
            let name = format!("reactor-{}", beginning.address.shard);
            let sender = sender.clone();
            let run = move || {
                let result = beginning.run();
                // Nobody is left to tell where the keeper has failed first.
                let _ = sender.blocking_send(result);
            };
            thread::Builder::new().name(name).spawn(run).context("can't start a thread")
        };
        let followers = addresses.drain(first..).zip(incoming.drain(first..)).map(begin).collect::<Result<_>>()?;
        drop(sender);
        let (address, incoming) = (addresses.pop().expect("the keeper's"), incoming.pop().expect("the keeper's"));
        let keeper = Rc::new(Reactor::new(array.into_engine()?, info.clone(), settings, Some(address))?);
        let limits = settings.limits(reactors.into());
        let mut fleet = Self { keeper, limits, dispatcher, incoming, steps, followers, ended };
        tokio::select! {
            _ = fleet.steps.wait() => Ok(fleet),
            failed = fleet.ended.recv() => Err(failure(failed)),
        }
    }

    /// The reactor that keeps the array's record, and is to close it in the end.
    pub(crate) fn keeper(&self) -> Rc<Reactor> {
        Rc::clone(&self.keeper)
    }

    /// The clients of all reactors.
    pub(crate) fn connections(&self) -> Connections {
        self.dispatcher.connections()
    }

    /// Serves until `shutdown` is ready and everybody but the keeper has flushed and stopped.
    pub(crate) async fn serve(self, listener: Listener, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self { keeper, limits, dispatcher, incoming, steps, followers, mut ended } = self;
        let server = Server::new(Rc::clone(&keeper), limits)?;
        keeper.count_request_memory(server.request_memory());
        let mut ring = keeper.spawn();
        let work = async {
            let ((), answered) = tokio::join!(dispatcher.run(listener, shutdown), server.serve_incoming(incoming));
            warn_unless(answered);
            keeper.quiesce().await;
            steps.wait().await;
            anyhow::Ok(())
        };
        let stopped = async {
            let mut flushed = Ok(());
            for _ in &followers {
                flushed = flushed.and(ended.recv().await.unwrap_or_else(|| Err(failure(None)))?);
            }
            anyhow::Ok(flushed)
        };
        let all = async {
            let ((), flushed) = tokio::try_join!(work, stopped)?;
            if flushed.is_err() {
                // What this thread has is not worth less for what another could not write.
                keeper.stop().await?;
            }
            flushed
        };
        tokio::select! {
            result = all => result?,
            broken = &mut ring => broken??,
        }
        ring.abort();
        for follower in followers {
            assert!(follower.join().is_ok(), "a thread that has sent its result has not panicked");
        }
        Ok(())
    }
}

impl Beginning {
    /// A follower's thread.
    fn run(self) -> Ended {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, self.serve())
    }

    async fn serve(self) -> Ended {
        let Self { follower, address, incoming, info, settings, steps } = self;
        let limits = settings.limits(address.bands.shards().count());
        let reactor = Rc::new(Reactor::new(follower.into_engine()?, info, settings, Some(address))?);
        let server = Server::new(Rc::clone(&reactor), limits)?;
        reactor.count_request_memory(server.request_memory());
        let mut ring = reactor.spawn();
        steps.wait().await;
        let work = async {
            warn_unless(server.serve_incoming(incoming).await);
            reactor.quiesce().await;
            steps.wait().await;
            reactor.stop().await
        };
        tokio::select! {
            flushed = work => Ok(flushed),
            broken = &mut ring => Err(failure(Some(broken?.map(Ok)))),
        }
    }
}

/// Why a follower ended before its time.
fn failure(ended: Option<Ended>) -> anyhow::Error {
    let unasked = || anyhow::anyhow!("a reactor's thread has ended");
    ended.unwrap_or_else(|| Err(unasked())).err().unwrap_or_else(unasked)
}
