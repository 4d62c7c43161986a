//! Permits for connections, of which there are so many: who holds them, and who must give way.
//!
//! When all are taken, a new connection takes the permit of one that is still shaking hands: the oldest one of the host
//! with the most connections. So silent peers keep nobody out. After its handshake a client keeps its permit.
//! No lock is taken for a request, only when a connection arrives, finishes its handshake and ends.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::{
    limits::Limits,
    peer::{Host, Peer},
    refusals::Refusal,
};

/// The connections that are open, of all servers of one export together.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    host: Option<Host>,
    is_serving: bool,
    evicted: Arc<Notify>,
}

/// Permission to be connected, held until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    connections: Connections,
    id: u64,
    peer: Peer,
    evicted: Arc<Notify>,
}

impl Connections {
    /// How many are open.
    pub fn count(&self) -> usize {
        self.table().open.len()
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
        let (id, evicted) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        table.open.push(Entry { id, host, is_serving: false, evicted: Arc::clone(&evicted) });
        Ok((Permit { connections: self.clone(), id, peer, evicted }, gave_way))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("nobody panics with the table of connections")
    }
}

impl Table {
    fn count(&self, host: Option<Host>) -> usize {
        self.open.iter().filter(|entry| entry.host == host).count()
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
        let entry = table.open.iter_mut().find(|entry| entry.id == self.id);
        entry.map(|entry| entry.is_serving = true).is_some()
    }

    /// Waits until the permit is given to somebody else.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connections.table().open.retain(|entry| entry.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

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
