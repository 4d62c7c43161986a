//! The limits on what clients may use.

use std::time::Duration;

/// The limits on what clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. Further ones take the place of one that still shakes hands, or are closed at once.
    pub connections_max: usize,
    /// Connections at a time of one host in the network: of one IPv4 address, or one IPv6 network of 64 bits. Less than
    /// all, so that one host can't keep the others out.
    pub connections_per_host_max: usize,
    /// Data of requests of one connection that are not yet received, executed or answered. One request is always
    /// admitted.
    pub bytes_in_flight_max: u64,
    /// The same of all connections of one server. One request that is larger than half of it is admitted at a time.
    pub bytes_in_flight_all_max: u64,
    /// Requests of one connection whose reply is not yet sent.
    pub requests_in_flight_max: u32,
    /// How long a client may leave replies unread or announced data unsent while others wait for the memory, if it
    /// moves less than a MiB; then it is disconnected. One that gets memory for which others have waited longer than
    /// this has a thirtieth of it, and more for what it moves.
    pub stuck_timeout: Duration,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
    /// How long a client may neither send anything nor take replies while no request of it is being executed; none: as
    /// long as it likes. It is disconnected at most a quarter later.
    pub idle_timeout: Option<Duration>,
    /// Time for requests in flight at shutdown.
    pub shutdown_timeout: Duration,
    /// What becomes of requests that come during a shutdown.
    pub drain: Drain,
}

/// What becomes of requests that come while a server shuts down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Drain {
    /// They are not read, and connections are closed as soon as requests in flight are answered: clients that connect
    /// again ask the server's successor.
    #[default]
    Close,
    /// They fail with `NBD_ESHUTDOWN`, until the client leaves or the time of the shutdown is over.
    Refuse,
}

impl Default for Limits {
    /// 64 connections, 48 of one host, each of 64 MiB and 1024 requests, together of 256 MiB; 10 s for a handshake, 30
    /// s for who is stuck and for a shutdown; clients may be idle, and connections are closed at a shutdown.
    fn default() -> Self {
        Self {
            connections_max: 64,
            connections_per_host_max: 48,
            bytes_in_flight_max: 64 << 20,
            bytes_in_flight_all_max: 256 << 20,
            requests_in_flight_max: 1024,
            stuck_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: None,
            shutdown_timeout: Duration::from_secs(30),
            drain: Drain::Close,
        }
    }
}
