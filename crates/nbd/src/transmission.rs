//! The transmission phase without I/O: requests are decoded and checked, reply headers are written.
//!
//! ```text
//! request           magic 25609513 | flags 16 | type 16 | cookie 64 | offset 64 | length 32 | a write's data
//! simple reply      magic 67446698 | error 32 | cookie 64 | a read's data
//! structured chunk  magic 668e33ef | flags 16 | type 16 | cookie 64 | length 32 | payload
//! ```
//!
//! Data never pass through here: the caller receives a write's data where it wants them, and sends a read's data after
//! the header.

mod decoder;
mod reply;
mod session;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use decoder::REQUEST_BYTES;
pub use decoder::{Cookie, Decoder, Received, Request};
pub use reply::ReplyHeader;
pub(crate) use reply::{EXTENTS_MAX, encode_extents};
pub use session::Session;
pub(crate) use session::transmission_flags;
