//! The server on real sockets: with a client that writes raw bytes, and with the clients that people use.

mod clients;
mod limits;
mod memory;
mod requests;
mod shutdown;
mod sockets;
mod support;
