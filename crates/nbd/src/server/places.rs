//! The places for connections: who holds them, and who must give way.
//!
//! When all places are taken, a new connection takes the place of one that is still shaking hands: the oldest one of
//! the host with the most connections. So silent peers keep nobody out. After its handshake a client keeps its place.
//! No lock is taken for a request, only when a connection arrives, finishes its handshake and ends.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::Notify;

use super::{Limits, refusals::Refusal};

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

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process of this machine, where the system says which.
    Local(Option<i32>),
    /// Somebody in the network.
    Remote(SocketAddr),
}

/// Whose connections are counted together: an IPv4 address, or the 2^64 IPv6 addresses that one host may choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Host(IpAddr);

/// One place, held until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
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

    /// A place for a new connection, and whether one that was shaking hands had to give way for it.
    pub(super) fn place(&self, peer: Peer, limits: &Limits) -> Result<(Place, Option<Refusal>), Refusal> {
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
        Ok((Place { connections: self.clone(), id, peer, evicted }, gave_way))
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

impl Place {
    /// Who holds it.
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Notes that the handshake is over; false if the place was given away before.
    pub(super) fn keep(&self) -> bool {
        let mut table = self.connections.table();
        let entry = table.open.iter_mut().find(|entry| entry.id == self.id);
        entry.map(|entry| entry.is_serving = true).is_some()
    }

    /// Waits until the place is given to somebody else.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.table().open.retain(|entry| entry.id != self.id);
    }
}

impl Peer {
    fn host(self) -> Option<Host> {
        match self {
            Self::Local(_) => None,
            Self::Remote(address) => Some(match address.ip().to_canonical() {
                IpAddr::V6(ip) => Host(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
                ip => Host(ip),
            }),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(Some(pid)) => write!(f, "process {pid}"),
            Self::Local(None) => f.write_str("a process of this machine"),
            Self::Remote(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
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
        let place = |host, port| connections.place(remote(host, port), &limits).unwrap();
        let one = place("10.0.0.1", 1).0;
        let two: Vec<_> = (0..3).map(|port| place("10.0.0.2", port).0).collect();
        assert!(two[0].keep());
        let (new, gave_way) = place("10.0.0.3", 1);
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
        let places: Vec<_> = (0..2).map(|_| connections.place(peer, &limits).unwrap().0).collect();
        assert!(places.iter().all(Place::keep));
        assert!(matches!(connections.place(peer, &limits), Err(Refusal::TooMany { max: 2 })));
        assert_eq!(connections.count(), 2);
    }

    #[test]
    fn a_host_leaves_places_to_others() {
        let (connections, limits) = (Connections::default(), limits(4, 2));
        let place = |peer| connections.place(peer, &limits);
        let first = place(remote("2001:db8::1", 1)).unwrap().0;
        let second = place(remote("2001:db8::ffff:1", 1)).unwrap().0;
        let other = place(remote("2001:db8:0:1::1", 1)).unwrap().0;
        assert!(second.keep() && other.keep());
        let (third, gave_way) = place(remote("2001:db8::2", 1)).unwrap();
        assert!(gave_way.is_some() && !first.keep() && third.keep(), "it makes way for itself");
        assert!(matches!(place(remote("2001:db8::3", 1)), Err(Refusal::TooManyOfHost { max: 2, .. })));
        assert!(place(remote("10.0.0.1", 1)).is_ok() && place(remote("::ffff:10.0.0.1", 2)).is_ok());
    }
}
