//! The client's half of the protocol, without I/O, but for [`Connection`], which blocks.
//!
//! [`Handshake`] and [`Transmission`] are plain state machines: bytes in, bytes and decisions out. Bytes may arrive in
//! any pieces. Data never pass through them: whoever reads the socket receives a read's data where it wants them.
//!
//! A server is not believed: every length is checked before anything is allocated or awaited on its account, what it
//! says must answer what was asked, and a read is not done before every byte of it was delivered, once. Whatever else
//! it says is an [`Error`] that names it, and ends the connection.

mod agreed;
mod blocking;
mod certificates;
mod covered;
mod error;
mod handshake;
mod socket;
mod transmission;
mod tunnel;
mod uri;

pub use agreed::Agreed;
pub use blocking::{Connection, list};
pub use error::{Error, Refusal};
pub use handshake::{Ended, Goal, Handshake, Listed};
pub use socket::{DELIVERY_MAX, Socket};
pub use transmission::{Part, Received, RequestHeader, RequestIndex, Transmission};
pub use uri::{Address, Tls, Uri, UriError};
