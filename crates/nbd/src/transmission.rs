//! The transmission phase without I/O: requests are decoded and checked, reply headers are written.
//!
//! ```text
//! compact request   magic 25609513 | flags 16 | type 16 | cookie 64 | offset 64 | length 32 | a write's data
//! simple reply      magic 67446698 | error 32 | cookie 64 | a read's data
//! structured chunk  magic 668e33ef | flags 16 | type 16 | cookie 64 | length 32 | payload
//! extended request  magic 21e41c71 | flags 16 | type 16 | cookie 64 | offset 64 | length 64 | payload
//! extended chunk    magic 6e8a278c | flags 16 | type 16 | cookie 64 | offset 64 | length 64 | payload
//! ```
//!
//! The length of an extended request is that of its payload if a flag says so, and otherwise of what it is about. An
//! extended chunk repeats the request's offset.
//!
//! Data never pass through here: the caller receives a write's data where it wants them, and sends a read's data after
//! the header.

mod decoder;
mod reply;
mod session;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, Echo, Received, Request};
#[cfg(test)]
pub(crate) use decoder::{EXTENDED_REQUEST_BYTES, REQUEST_BYTES, STATUS_PAYLOAD_BYTES};
#[cfg(test)]
pub(crate) use reply::EXTENTS_MAX;
pub use reply::ReplyHeader;
pub(crate) use reply::{EXTENTS_BYTES_MAX, encode_extents};
pub(crate) use session::SESSION_BYTES;
pub use session::Session;
