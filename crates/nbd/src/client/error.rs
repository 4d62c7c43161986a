//! Why a client can't go on with a server.

use std::fmt;
use std::io;

use crate::{certificates::TlsError, proto::option_reply as rep};

/// Why a connection to a server can't be made, or has to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What answers does not speak the protocol, or only its old style.
    #[error("expected the greeting of an NBD server and got {found:#018x}: this is none, or one of the old style")]
    Greeting {
        /// What was there instead of a magic number.
        found: u64,
    },
    /// The server's handshake has no error replies.
    #[error("the server does not speak fixed newstyle, without which nothing can be asked")]
    NotFixed,
    /// Something else came in place of a reply to an option.
    #[error("expected a reply to an option and got {found:#018x}: the server's stream is out of step")]
    OptionReplyMagic {
        /// What was there instead of the magic number.
        found: u64,
    },
    /// A reply to an option that was not sent.
    #[error("the server answered option {answered} when it was asked option {asked}")]
    WrongOption {
        /// What was sent.
        asked: u32,
        /// What the reply is to.
        answered: u32,
    },
    /// A reply to an option is longer than any sound one.
    #[error("the server replies with {length_bytes} bytes to option {option}")]
    OptionReplyTooLong {
        /// The option's number.
        option: u32,
        /// The reply's declared length.
        length_bytes: u32,
    },
    /// An option has more replies than any sound one.
    #[error("the server does not stop replying to option {option}")]
    TooManyReplies {
        /// The option's number.
        option: u32,
    },
    /// A reply to an option that makes no sense.
    #[error("the server's reply to option {option} has {what}")]
    OptionReply {
        /// The option's number.
        option: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The server does not let the client have what it asked for.
    #[error("{}", told(*refusal, said))]
    Refused {
        /// Why, as a number.
        refusal: Refusal,
        /// Why, in the server's words, made printable. May be empty.
        said: String,
    },
    /// The server does not encrypt.
    #[error("the server does not offer TLS: {}", told(*refusal, said))]
    NoTls {
        /// Why, as a number.
        refusal: Refusal,
        /// Why, in the server's words, made printable. May be empty.
        said: String,
    },
    /// What the server says of the export can't be.
    #[error("the server describes an export that can't be: {what}")]
    Export {
        /// What is wrong with it.
        what: &'static str,
    },
    /// Bytes that nobody can have encrypted came after the server agreed to TLS.
    #[error("something in the clear follows the agreement on TLS: somebody tampers with the connection")]
    PlainAfterStartTls,
    /// Something else came in place of a reply to a request.
    #[error("expected a reply and got {found:#010x}: the server's stream is out of step")]
    ReplyMagic {
        /// What was there instead of the magic number.
        found: u32,
    },
    /// A reply to a request that was not sent, or has been answered.
    #[error("the server answered the request {cookie:#x}, which nobody has sent")]
    UnknownCookie {
        /// What the reply says.
        cookie: u64,
    },
    /// A reply that does not answer its request.
    #[error("the server's reply has {what}")]
    Reply {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The server closed its side while something was awaited from it.
    #[error("the server ended the connection")]
    UnexpectedEnd,
    /// The server answered a request with an error.
    #[error("the server answered with error {code}: {}", io::Error::from_raw_os_error(code.cast_signed()))]
    Answered {
        /// The protocol's number, which is that of the same error of the system.
        code: u32,
    },
    /// The files for TLS can't be used.
    #[error(transparent)]
    Certificates(#[from] TlsError),
    /// The client and the server did not agree on TLS, or the server did not prove itself.
    #[error("TLS was not established: {source}")]
    Tls {
        /// What the TLS library says.
        source: io::Error,
    },
    /// The server ended the connection when it had just been encrypted.
    #[error(
        "the server ended the connection when TLS was established ({source}): it may want a certificate that it knows"
    )]
    TurnedAway {
        /// What the system, or the TLS library, says.
        source: io::Error,
    },
    /// No certificate can be for the server's name.
    #[error("no certificate can be for '{name}': add tls-hostname=NAME with the name in the server's")]
    ServerName {
        /// The name.
        name: String,
    },
    /// The server's name leads nowhere.
    #[error("can't find the host '{host}': {source}")]
    Resolve {
        /// The name.
        host: String,
        /// What the system says.
        source: io::Error,
    },
    /// The socket can't be connected, read or written.
    #[error("can't {action}: {source}")]
    Socket {
        /// What was being done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// Why a server refuses an option, `NBD_REP_ERR_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal(pub(super) u32);

impl Refusal {
    /// Whether the server does not know the option.
    #[must_use]
    pub fn is_unsupported(self) -> bool {
        self.0 == rep::ERR_UNSUP
    }

    /// Whether the server has no such export.
    #[must_use]
    pub fn is_unknown(self) -> bool {
        self.0 == rep::ERR_UNKNOWN
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            rep::ERR_UNSUP => "the server does not know the option",
            rep::ERR_POLICY => "the server is not set up for that",
            rep::ERR_INVALID => "the server finds the option invalid",
            rep::ERR_TLS_REQD => "the server requires TLS",
            rep::ERR_UNKNOWN => "the server has no such export",
            rep::ERR_TOO_BIG => "the server finds the option too large",
            other => return write!(f, "the server refuses with {other:#010x}"),
        })
    }
}

/// A refusal with what the server says to it.
fn told(refusal: Refusal, said: &str) -> String {
    if said.is_empty() { refusal.to_string() } else { format!("{refusal} (it says: {said})") }
}
