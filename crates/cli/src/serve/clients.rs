//! What clients may use of a server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uraid_layout::Bytes;
use uraid_nbd::{Drain, Limits, RateLimits, descriptors_needed};
use uraid_serve::patience::{Limit, deadline};

use crate::misuse::Misuse;
use crate::values::{Operations, Rate, memory, operations, rate};

/// Each connection takes 256 KiB for what it receives.
const CONNECTIONS_MAX: u64 = 10_000;
const CONNECTIONS: &str = "64";

const REQUESTS_MAX: i64 = 65_536;
const REQUESTS: &str = "1024";

const MEMORY: &str = "64M";
const HANDSHAKE_DEADLINE: &str = "10s";
const STOP_DEADLINE: &str = "30s";

/// What clients may use of a server.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ClientArgs {
    /// Most connections at a time
    ///
    /// Further ones are closed, unless one that has not finished its handshake can give way. `uraid status` says how
    /// many were refused.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=CONNECTIONS_MAX), default_value = CONNECTIONS)]
    #[arg(value_name = "N", help_heading = "Limits for clients", hide_short_help = true)]
    max_connections: u64,
    /// Most connections of one other host at a time [default: three quarters of --max-connections]
    ///
    /// A host is an IPv4 address, or an IPv6 network of 64 bits. On Unix sockets only --max-connections counts.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    #[arg(value_name = "N", help_heading = "Limits for clients", hide_short_help = true)]
    max_connections_per_host: Option<u64>,
    /// Most requests in flight of one connection
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=REQUESTS_MAX), default_value = REQUESTS)]
    #[arg(value_name = "N", help_heading = "Limits for clients", hide_short_help = true)]
    max_requests: u32,
    /// Memory for the requests of one connection; for those of all there is --request-memory
    ///
    /// A connection that has used it up waits. A single request may be larger.
    #[arg(long, value_parser = memory, default_value = MEMORY, value_name = "SIZE")]
    #[arg(help_heading = "Limits for clients", hide_short_help = true)]
    client_memory: Bytes,
    /// Most bytes per second that all clients together read and write, such as 50M; none: no limit
    ///
    /// What was not used within a second is lost.
    #[arg(long, value_parser = rate, default_value = "none", value_name = "RATE|none")]
    #[arg(help_heading = "Limits for clients", hide_short_help = true)]
    client_limit: Rate,
    /// Most requests per second of all clients together, such as 500; none: no limit
    ///
    /// All but flushes count, which never wait themselves.
    #[arg(long, value_parser = operations, default_value = "none", value_name = "N|none")]
    #[arg(help_heading = "Limits for clients", hide_short_help = true)]
    client_iops_limit: Operations,
    /// Disconnect who does not finish the handshake within this time
    #[arg(long, value_parser = time, default_value = HANDSHAKE_DEADLINE, value_name = "TIME")]
    #[arg(help_heading = "Limits for clients", hide_short_help = true)]
    handshake_deadline: Duration,
    /// Disconnect who sends nothing and takes no replies for this long; off: nobody
    ///
    /// It does not count while a request is being executed. It happens up to a quarter of the time later.
    #[arg(long, value_parser = deadline, default_value = "off", value_name = "TIME|off")]
    #[arg(help_heading = "Limits for clients", hide_short_help = true)]
    idle_deadline: Limit<Duration>,
    /// How long a stop waits for clients' requests in flight
    ///
    /// The members may take longer to write out what is in memory. A service manager has to be as patient.
    #[arg(long, value_parser = time, default_value = STOP_DEADLINE, value_name = "TIME")]
    #[arg(help_heading = "Limits for clients", hide_short_help = true)]
    stop_deadline: Duration,
    /// What becomes of requests that come while the server stops
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    #[arg(help_heading = "Limits for clients", hide_short_help = true)]
    drain: DrainName,
}

/// What becomes of requests that come while the server stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DrainName {
    /// They are not read, and clients that connect again repeat them to the next server: a restart is a pause
    #[default]
    Close,
    /// They fail at once (NBD_ESHUTDOWN) until the client leaves or --stop-deadline is over: nobody waits for a server
    /// that does not come back
    Eshutdown,
}

impl Default for ClientArgs {
    fn default() -> Self {
        Self {
            max_connections: CONNECTIONS.parse().expect("a number"),
            max_connections_per_host: None,
            max_requests: REQUESTS.parse().expect("a number"),
            client_memory: memory(MEMORY).expect("a size"),
            client_limit: Rate(None),
            client_iops_limit: Operations(None),
            handshake_deadline: time(HANDSHAKE_DEADLINE).expect("a time"),
            idle_deadline: Limit(None),
            stop_deadline: time(STOP_DEADLINE).expect("a time"),
            drain: DrainName::Close,
        }
    }
}

impl ClientArgs {
    /// The server's limits; `all` is the memory for the requests of all clients.
    pub(super) fn limits(&self, all: Bytes) -> Limits {
        let count = |number: u64| usize::try_from(number).expect("a small number");
        Limits {
            connections_max: count(self.max_connections),
            connections_per_host_max: count(self.per_host()),
            bytes_in_flight_max: self.client_memory.0,
            bytes_in_flight_all_max: all.0,
            requests_in_flight_max: self.max_requests,
            handshake_timeout: self.handshake_deadline,
            idle_timeout: self.idle_deadline.0,
            shutdown_timeout: self.stop_deadline,
            drain: match self.drain {
                DrainName::Close => Drain::Close,
                DrainName::Eshutdown => Drain::Refuse,
            },
            ..Limits::default()
        }
    }

    /// How fast clients may go on at first.
    pub(super) fn rates(&self) -> RateLimits {
        RateLimits {
            operations_per_second: self.client_iops_limit.0,
            bytes_per_second: self.client_limit.0.map(|rate| rate.0),
        }
    }

    fn per_host(&self) -> u64 {
        self.max_connections_per_host.unwrap_or((self.max_connections * 3).div_ceil(4))
    }

    /// Refuses numbers that contradict each other.
    pub(super) fn check(&self) -> Result<(), Misuse> {
        let (host, all) = (self.per_host(), self.max_connections);
        if host > all {
            return Err(Misuse(format!(
                "--max-connections-per-host {host} is more than --max-connections {all}, which counts for all hosts: \
                 lower the first or raise the second"
            )));
        }
        Ok(())
    }

    /// Makes sure that the limit of open files, of which the server itself needs `own`, is enough for one client, and
    /// for all if they are more than by default.
    pub(super) fn ensure_descriptors(&self, own: u64, members: usize) -> Result<()> {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let (limit, maximum) = (current.unwrap_or(u64::MAX), maximum.unwrap_or(u64::MAX));
        let needed = descriptors_needed(own);
        ensure!(
            limit >= needed,
            "the limit of open files is {limit}, and serving {members} members needs {needed}: raise it (ulimit -n, \
             or LimitNOFILE= of the unit)"
        );
        let for_all = descriptors_needed(own + self.max_connections - 1);
        if CONNECTIONS.parse() == Ok(self.max_connections) || limit >= for_all {
            return Ok(());
        }
        ensure!(
            maximum >= for_all,
            "the limit of open files is {maximum}, and --max-connections {} needs {for_all}: raise it (ulimit -n, or \
             LimitNOFILE= of the unit), or allow fewer connections",
            self.max_connections
        );
        let raised = Rlimit { current: Some(for_all), maximum: getrlimit(Resource::Nofile).maximum };
        setrlimit(Resource::Nofile, raised).context("can't raise the limit of open files")
    }
}

/// A time that there has to be.
fn time(text: &str) -> Result<Duration, String> {
    let advice = || format!("'{text}' is not a time; write for example 10s, 500ms or 2m");
    deadline(text).and_then(|limit| limit.0.ok_or_else(advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_the_protocol_servers_default() {
        let all = Bytes(Limits::default().bytes_in_flight_all_max);
        assert_eq!(ClientArgs::default().limits(all), Limits::default());
    }

    #[test]
    fn what_is_said_holds() {
        let seconds = Duration::from_secs;
        let args = ClientArgs {
            max_connections: 1,
            max_connections_per_host: Some(2),
            max_requests: 3,
            client_memory: Bytes(4),
            client_limit: Rate(Some(Bytes(5))),
            client_iops_limit: Operations(Some(6)),
            handshake_deadline: seconds(7),
            idle_deadline: Limit(Some(seconds(8))),
            stop_deadline: seconds(9),
            drain: DrainName::Eshutdown,
        };
        let expected = Limits {
            connections_max: 1,
            connections_per_host_max: 2,
            requests_in_flight_max: 3,
            bytes_in_flight_max: 4,
            bytes_in_flight_all_max: 10,
            handshake_timeout: seconds(7),
            idle_timeout: Some(seconds(8)),
            shutdown_timeout: seconds(9),
            drain: Drain::Refuse,
            ..Limits::default()
        };
        assert_eq!(args.limits(Bytes(10)), expected);
        assert_eq!(args.rates(), RateLimits { bytes_per_second: Some(5), operations_per_second: Some(6) });
    }

    #[test]
    fn a_host_has_no_more_connections_than_all() {
        let args = |max_connections, max_connections_per_host| ClientArgs {
            max_connections,
            max_connections_per_host,
            ..ClientArgs::default()
        };
        assert!(args(1, None).check().is_ok() && args(8, Some(8)).check().is_ok());
        assert_eq!(args(1, None).limits(Bytes(0)).connections_per_host_max, 1);
        assert_eq!(args(1000, None).limits(Bytes(0)).connections_per_host_max, 750);
        let refused = args(8, Some(9)).check().unwrap_err().to_string();
        assert!(refused.contains("--max-connections-per-host 9") && refused.contains("--max-connections 8"));
    }

    #[test]
    fn times_have_to_be() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        for text in ["off", "0s", "10", "soon"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
