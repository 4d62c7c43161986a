//! Several reactors for one array, each on its own thread.
//!
//! The calling thread is the keeper's. It accepts connections, which all reactors serve in turn, and finally marks the
//! members clean. A stop proceeds in this order:
//! 1. Each thread waits for its connections to end, and for all requests with parts elsewhere.
//! 2. Once that is true everywhere, nobody sends requests anymore. The followers flush their data, through the keeper,
//!    and end.
//! 3. The keeper closes the array. If a follower could not flush, the keeper only flushes its own data.
//!
//! If a thread fails before that, the process ends, as for a single reactor. The members are then as after a crash.

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
    /// Limits for the clients of each reactor.
    limits: Limits,
    dispatcher: Dispatcher,
    incoming: Incoming,
    steps: Arc<Barrier>,
    followers: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Ended>,
}

/// How a follower's thread ended: either it failed early, or this is the result of its final flush.
type Ended = Result<Result<()>>;

/// Input of a follower's thread.
struct Beginning {
    follower: Follower,
    address: Address,
    incoming: Incoming,
    info: ExportInfo,
    settings: Settings,
    steps: Arc<Barrier>,
}

impl Fleet {
    /// Starts `reactors` threads, including this one.
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
                // If the keeper failed first, there is nobody to tell.
                let _ = sender.blocking_send(result);
            };
            thread::Builder::new().name(name).spawn(run).context("can't start a thread")
        };
        let followers = addresses.drain(first..).zip(incoming.drain(first..)).map(begin).collect::<Result<_>>()?;
        drop(sender);
        let (address, incoming) = (addresses.pop().expect("the keeper's"), incoming.pop().expect("the keeper's"));
        let keeper = Rc::new({
            let recorder = Arc::clone(&address.recorder);
            Reactor::new(array.into_engine()?, info.clone(), settings, Some(address), None, recorder)?
        });
        let limits = settings.limits(reactors.into());
        let mut fleet = Self { keeper, limits, dispatcher, incoming, steps, followers, ended };
        tokio::select! {
            _ = fleet.steps.wait() => Ok(fleet),
            failed = fleet.ended.recv() => Err(failure(failed)),
        }
    }

    /// The reactor that keeps the array's record and closes the array at the end.
    pub(crate) fn keeper(&self) -> Rc<Reactor> {
        Rc::clone(&self.keeper)
    }

    /// The clients of all reactors.
    pub(crate) fn connections(&self) -> Connections {
        self.dispatcher.connections()
    }

    /// Serves until `shutdown` completes and all followers have flushed and stopped.
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
                // This thread's data still counts, even though another's could not be written.
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
    /// Runs a follower's thread.
    fn run(self) -> Ended {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, self.serve())
    }

    async fn serve(self) -> Ended {
        let Self { follower, address, incoming, info, settings, steps } = self;
        let limits = settings.limits(address.bands.shards().count());
        let reactor = Rc::new({
            let recorder = Arc::clone(&address.recorder);
            Reactor::new(follower.into_engine()?, info, settings, Some(address), None, recorder)?
        });
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

/// Why a follower ended early.
fn failure(ended: Option<Ended>) -> anyhow::Error {
    let unasked = || anyhow::anyhow!("a reactor's thread has ended");
    ended.unwrap_or_else(|| Err(unasked())).err().unwrap_or_else(unasked)
}
