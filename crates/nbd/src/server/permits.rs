//! Permits for connections, of which there are so many: who holds them, and who must give way.
//!
//! When all are taken, a new connection takes the permit of one that is still shaking hands: the oldest one of the
//! host with the most connections. So silent peers keep nobody out. After its handshake a client keeps its permit. No
//! lock is taken for a request, only when a connection arrives, finishes its handshake and ends.
//!
//! A permit is held until everything has ended that the client has asked to be changed, though its connection is
//! closed. A client is served when that is so of every connection before its own that was closed by then: whoever
//! comes after a client that has died finds nothing of it still under way, and nothing of it lands on what the
//! newcomer writes. Only the task of a connection knows whether it was closed, so each is asked. One that can change
//! nothing any more, because it has made its last request and the changes have ended, is not waited for, though its
//! replies are still due.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::{
    limits::Limits,
    peer::{Host, Peer},
    refusals::Refusal,
};

/// The connections that are open, of all servers of one export together.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    /// A connection has answered, or ended.
    changed: Notify,
    /// Connections that were closed at once.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: Vec<Entry>,
    /// How often clients have asked whether the connections before theirs are closed.
    questions: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    host: Option<Host>,
    is_serving: bool,
    /// The client has closed it.
    is_closed: bool,
    /// Its last request was read, and none of them changes anything any more.
    is_settled: bool,
    /// The last question that it has answered.
    answered: u64,
    evicted: Arc<Notify>,
    asked: Arc<Notify>,
}

/// Permission to be connected, held until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    connections: Connections,
    id: u64,
    peer: Peer,
    evicted: Arc<Notify>,
    asked: Arc<Notify>,
}

impl Connections {
    /// How many are open.
    pub fn count(&self) -> usize {
        self.table().open.len()
    }

    /// How many were closed at once, because of a limit or of who had connected.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// Counts one that was.
    pub(super) fn count_refused(&self) {
        self.0.refused.fetch_add(1, Relaxed);
    }

    /// A permit for a new connection, and whether one that was shaking hands had to give way for it.
    pub(super) fn admit(&self, peer: Peer, limits: &Limits) -> Result<(Permit, Option<Refusal>), Refusal> {
        let mut table = self.table();
        let host = peer.host();
        let of_host = table.count(host);
        let refusal = if host.is_some() && of_host >= limits.connections_per_host_max {
            Some(Refusal::TooManyOfHost { max: limits.connections_per_host_max, peer })
        } else if table.open.len() >= limits.connections_max {
            Some(Refusal::TooMany { max: limits.connections_max })
        } else {
            None
        };
        let mut gave_way = None;
        if let Some(refusal) = refusal {
            let scope = matches!(refusal, Refusal::TooManyOfHost { .. }).then_some(host);
            let Some(index) = table.oldest_handshake(scope) else { return Err(refusal) };
            table.open.swap_remove(index).evicted.notify_one();
            gave_way = Some(Refusal::GaveWay);
        }
        let (id, evicted, asked) = (table.next, Arc::new(Notify::new()), Arc::new(Notify::new()));
        table.next += 1;
        let notify = (Arc::clone(&evicted), Arc::clone(&asked));
        table.open.push(Entry {
            id,
            host,
            is_serving: false,
            is_closed: false,
            is_settled: false,
            answered: 0,
            evicted: notify.0,
            asked: notify.1,
        });
        Ok((Permit { connections: self.clone(), id, peer, evicted, asked }, gave_way))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().expect("nobody panics with the table of connections")
    }
}

impl Table {
    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.open.iter_mut().find(|entry| entry.id == id)
    }

    /// Asks every connection whether it is closed: the question's number.
    fn ask(&mut self) -> u64 {
        self.questions += 1;
        self.open.iter().for_each(|entry| entry.asked.notify_one());
        self.questions
    }

    /// Whether every connection before this one is settled, or has said that it was not closed. Those that have not
    /// begun, or were not there, ask for nothing.
    fn is_quiet_before(&self, id: u64, question: u64) -> bool {
        let mut before = self.open.iter().filter(|entry| entry.id < id && entry.is_serving);
        before.all(|entry| entry.is_settled || entry.answered >= question && !entry.is_closed)
    }

    fn count(&self, host: Option<Host>) -> usize {
        self.open.iter().filter(|entry| entry.host == host).count()
    }

    /// The connections before this one that are closed, and not settled.
    fn closed_before(&self, id: u64) -> impl Iterator<Item = &Entry> {
        let is_waited_for = |entry: &Entry| entry.is_serving && entry.is_closed && !entry.is_settled;
        self.open.iter().filter(move |entry| entry.id < id && is_waited_for(entry))
    }

    /// The first that still shakes hands, of a host or of whoever has most connections.
    fn oldest_handshake(&self, scope: Option<Option<Host>>) -> Option<usize> {
        let handshakes = self.open.iter().enumerate().filter(|(_, entry)| !entry.is_serving);
        let in_scope = handshakes.filter(|(_, entry)| scope.is_none_or(|host| host == entry.host));
        in_scope.max_by_key(|(_, entry)| (self.count(entry.host), std::cmp::Reverse(entry.id))).map(|(index, _)| index)
    }
}

impl Permit {
    /// Who holds it.
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Notes that the handshake is over; false if the permit was given away before.
    pub(super) fn keep(&self) -> bool {
        let mut table = self.connections.table();
        table.entry(self.id).map(|entry| entry.is_serving = true).is_some()
    }

    /// Waits until nothing is under way any more of connections before this one that are closed by now; `is_closed`
    /// says whether this one is. Those of them that stay for longer than `patience` have to go: they may have more to
    /// ask for, and take no replies.
    pub(super) async fn fence(&self, is_closed: impl Fn() -> bool, patience: Duration) {
        let question = self.connections.table().ask();
        let mut impatience = pin!(sleep(patience));
        loop {
            let mut changed = pin!(self.connections.0.changed.notified());
            changed.as_mut().enable();
            if self.connections.table().is_quiet_before(self.id, question) {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = self.asked() => self.answer(is_closed()),
                () = &mut impatience => {
                    self.connections.table().closed_before(self.id).for_each(|entry| entry.evicted.notify_one());
                    impatience.as_mut().reset(Instant::now() + patience);
                }
            }
        }
    }

    /// Waits until somebody asks whether the connection is closed.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Says whether it is.
    pub(super) fn answer(&self, is_closed: bool) {
        let mut table = self.connections.table();
        let questions = table.questions;
        if let Some(entry) = table.entry(self.id) {
            (entry.answered, entry.is_closed) = (questions, entry.is_closed || is_closed);
        }
        drop(table);
        self.connections.0.changed.notify_waiters();
    }

    /// Notes that the client has made its last request, and that nothing it has asked for changes anything any more.
    pub(super) fn settle(&self) {
        if let Some(entry) = self.connections.table().entry(self.id) {
            entry.is_settled = true;
        }
        self.connections.0.changed.notify_waiters();
    }

    /// Waits until the permit is given to somebody else.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connections.table().open.retain(|entry| entry.id != self.id);
        self.connections.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, net::SocketAddr, pin::Pin, task::Poll};

    use super::*;

    fn remote(host: &str, port: u16) -> Peer {
        Peer::Remote(SocketAddr::new(host.parse().unwrap(), port))
    }

    fn limits(connections_max: usize, connections_per_host_max: usize) -> Limits {
        Limits { connections_max, connections_per_host_max, ..Limits::default() }
    }

    #[test]
    fn the_oldest_handshake_of_who_has_most_gives_way() {
        let (connections, limits) = (Connections::default(), limits(4, 4));
        let admit = |host, port| connections.admit(remote(host, port), &limits).unwrap();
        let one = admit("10.0.0.1", 1).0;
        let two: Vec<_> = (0..3).map(|port| admit("10.0.0.2", port).0).collect();
        assert!(two[0].keep());
        let (new, gave_way) = admit("10.0.0.3", 1);
        assert!(matches!(gave_way, Some(Refusal::GaveWay)));
        assert!(!two[1].keep(), "the older one of those that shake hands");
        assert!(one.keep() && two[2].keep() && new.keep());
        assert_eq!(connections.count(), 4);
        drop(two);
        assert_eq!(connections.count(), 2, "one that gave way does not free another's place");
    }

    #[test]
    fn clients_that_are_served_keep_their_places() {
        let (connections, limits) = (Connections::default(), limits(2, 2));
        let peer = Peer::Local(None);
        let permits: Vec<_> = (0..2).map(|_| connections.admit(peer, &limits).unwrap().0).collect();
        assert!(permits.iter().all(Permit::keep));
        assert!(matches!(connections.admit(peer, &limits), Err(Refusal::TooMany { max: 2 })));
        assert_eq!(connections.count(), 2);
    }

    const LONG: Duration = Duration::from_secs(3600);

    /// Whether a future is ready when it is asked once.
    async fn is_ready(mut future: Pin<&mut impl Future<Output = ()>>) -> bool {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
    }

    /// A client waits for what one before it has left, not for one that is there, nor for one that came later.
    #[tokio::test]
    async fn a_client_waits_for_what_those_before_it_have_left() {
        let (connections, limits) = (Connections::default(), limits(8, 8));
        let admit = || {
            let permit = connections.admit(Peer::Local(None), &limits).unwrap().0;
            assert!(permit.keep());
            permit
        };
        let (left, there, new, later) = (admit(), admit(), admit(), admit());
        let mut fence = pin!(new.fence(|| false, LONG));
        assert!(!is_ready(fence.as_mut()).await, "nobody has answered");
        left.asked().await;
        left.answer(true);
        later.asked().await;
        later.answer(true);
        assert!(!is_ready(fence.as_mut()).await);
        there.asked().await;
        there.answer(false);
        assert!(!is_ready(fence.as_mut()).await, "something is left");
        drop(left);
        assert!(is_ready(fence.as_mut()).await);
        // Whoever waits answers, too: its client may be gone as well.
        let mut waits = pin!(later.fence(|| true, LONG));
        assert!(!is_ready(waits.as_mut()).await);
        let last = admit();
        let mut fence = pin!(last.fence(|| false, LONG));
        assert!(!is_ready(fence.as_mut()).await);
        assert!(!is_ready(waits.as_mut()).await);
        there.answer(false);
        new.answer(false);
        assert!(is_ready(waits.as_mut()).await, "those before it are there");
        assert!(!is_ready(fence.as_mut()).await, "one has left that had not begun");
    }

    /// Replies that nobody takes keep nobody waiting.
    #[tokio::test]
    async fn who_can_change_nothing_any_more_is_not_waited_for() {
        let (connections, limits) = (Connections::default(), limits(8, 8));
        let [left, new] = [(); 2].map(|()| connections.admit(Peer::Local(None), &limits).unwrap().0);
        assert!(left.keep() && new.keep());
        let mut fence = pin!(new.fence(|| false, LONG));
        left.answer(true);
        assert!(!is_ready(fence.as_mut()).await);
        left.settle();
        assert!(is_ready(fence.as_mut()).await);
        let later = connections.admit(Peer::Local(None), &limits).unwrap().0;
        new.answer(false);
        let mut fence = pin!(later.fence(|| false, LONG));
        assert!(!is_ready(fence.as_mut()).await, "one has not answered");
        new.answer(false);
        assert!(is_ready(fence.as_mut()).await, "the settled one is not asked");
    }

    #[test]
    fn a_host_leaves_places_to_others() {
        let (connections, limits) = (Connections::default(), limits(4, 2));
        let admit = |peer| connections.admit(peer, &limits);
        let first = admit(remote("2001:db8::1", 1)).unwrap().0;
        let second = admit(remote("2001:db8::ffff:1", 1)).unwrap().0;
        let other = admit(remote("2001:db8:0:1::1", 1)).unwrap().0;
        assert!(second.keep() && other.keep());
        let (third, gave_way) = admit(remote("2001:db8::2", 1)).unwrap();
        assert!(gave_way.is_some() && !first.keep() && third.keep(), "it makes way for itself");
        assert!(matches!(admit(remote("2001:db8::3", 1)), Err(Refusal::TooManyOfHost { max: 2, .. })));
        assert!(admit(remote("10.0.0.1", 1)).is_ok() && admit(remote("::ffff:10.0.0.1", 2)).is_ok());
    }
}
