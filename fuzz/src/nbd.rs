//! Sessions of NBD clients with a real server, whose answers are judged.
//!
//! - [`export`]: what is served. It notes each command, and has an answer of its own for each.
//! - [`server`]: a server for each kind of export, on the target's own thread, and a client that sends given bytes.
//! - [`script`]: what is sent: sound sessions with each option and each request in every form, and changes to them.
//! - [`wire`]: numbers of the protocol. [`judge`]: what the server may and must answer. Both are written from the
//!   protocol document alone.
//!
//! The judge reads what was sent as a server has to, so that it knows what a session with any changes asks for. It
//! holds the server to the following: replies parse to the last byte; each option and each request has exactly one
//! reply, and nothing else has any; a request reaches the export if it is valid, unchanged and in its turn, and not at
//! all otherwise; what the export answers is what the client is told. The export itself insists that nothing beyond its
//! end reaches it, and that all buffers together keep within the server's budget; nothing is left of either when the
//! connection has ended.

mod export;
mod judge;
mod options;
mod script;
mod server;
mod wire;

use std::sync::Once;

pub use script::{Script, handshake, transmission};

/// Sends what a script says to a server, and judges what comes of it.
///
/// # Panics
/// When the server does something wrong.
pub fn check(script: &Script) {
    let (kind, pieces) = (script.kind, &script.pieces);
    let said = server::converse(kind, pieces);
    judge::judge(&export::KINDS[kind], &pieces.concat(), &said.bytes, &said.commands);
}

/// Checks the sessions that nobody has changed, each as a whole and cut into small pieces: without them the changed
/// ones would mean nothing.
///
/// # Panics
/// When the server does something wrong.
pub fn check_sound_sessions_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for kind in 0..export::KINDS.len() {
            for messages in script::sound(kind) {
                check(&Script { kind, pieces: vec![messages.concat()] });
                check(&Script { kind, pieces: messages.concat().chunks(13).map(<[u8]>::to_vec).collect() });
            }
        }
    });
}
