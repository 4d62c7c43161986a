//! End-to-end tests of the `uraid` binary; `uraid_tests` is their harness.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod advise;
mod bench;
mod bytes;
mod cache;
mod captive;
mod client_limits;
mod clients;
mod colours;
mod connection_threads;
mod control;
mod create;
mod degraded;
mod docs;
mod extended;
mod find;
mod grow;
mod harness;
mod health;
mod integrity;
mod kills;
mod lifecycle;
mod limits;
mod load;
mod log_devices;
mod lost;
mod mail;
mod map;
mod metrics;
mod mistakes;
mod mount;
mod package;
mod protocol;
mod record;
mod report;
mod reshape;
mod running;
mod simulate;
mod smart;
mod sockets;
mod sparse;
mod start;
mod systemd;
mod tls;
mod verify;
