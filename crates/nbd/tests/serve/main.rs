//! The server on real sockets: with a client that writes raw bytes, and with the clients that people use.
#![expect(clippy::unwrap_used, reason = "a step of the set-up that fails is a test that fails")]

mod clients;
mod cves;
mod handover;
mod limits;
mod memory;
mod protocol;
mod rates;
mod requests;
mod shutdown;
mod sockets;
mod support;
mod takeover;
mod tls;
