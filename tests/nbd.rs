//! A plain NBD client over a Unix socket, for what no foreign client can be made to send: requests that are wrong, and
//! chosen overlapping requests in flight together. Fixed newstyle, `NBD_OPT_GO`, simple replies.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a reply may take; only a hang reaches it.
const REPLY_TIME_MAX: Duration = Duration::from_secs(60);

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const FIXED_NEWSTYLE_NO_ZEROES: u16 = 0b11;
const FORCE_UNIT_ACCESS: u16 = 1;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read = 0,
    /// Write.
    Write = 1,
    /// End the connection.
    Disconnect = 2,
    /// Make what was acknowledged durable.
    Flush = 3,
    /// Discard.
    Trim = 4,
    /// Write zeroes without sending them.
    WriteZeroes = 6,
    /// No command of the protocol.
    Unknown = 0x7f,
}

/// NBD error numbers.
pub mod error {
    /// Operation not permitted: a write to a read-only export.
    pub const EPERM: u32 = 1;
    /// No memory for the request's data.
    pub const ENOMEM: u32 = 12;
    /// Invalid argument.
    pub const EINVAL: u32 = 22;
    /// A write beyond the end.
    pub const ENOSPC: u32 = 28;
    /// More than the server takes in one request.
    pub const EOVERFLOW: u32 = 75;
}

/// A reply to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request that it answers.
    pub cookie: u64,
    /// 0, or the NBD error number.
    pub error: u32,
    /// What a read returned.
    pub data: Vec<u8>,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    size: u64,
    block_sizes: Option<[u32; 3]>,
    next_cookie: u64,
    read_lengths: HashMap<u64, usize>,
}

impl Client {
    /// Connects to the server's default export.
    #[must_use]
    #[track_caller]
    pub fn connect(socket: &Path) -> Self {
        Self::try_connect(socket).unwrap_or_else(|error| panic!("connecting to {}: {error}", socket.display()))
    }

    /// Bytes of the export.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Smallest, preferred and largest request in bytes, if the server said.
    #[must_use]
    pub fn block_sizes(&self) -> Option<[u32; 3]> {
        self.block_sizes
    }

    /// Sends a request and returns its cookie; `payload` is what a write carries.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn submit(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> io::Result<u64> {
        self.send(0, command, offset, length, payload)
    }

    /// As [`Client::submit`], with FUA: what it writes is durable when it is answered.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn submit_durable(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> io::Result<u64> {
        self.send(FORCE_UNIT_ACCESS, command, offset, length, payload)
    }

    /// Waits for the next reply, to whichever request.
    ///
    /// # Errors
    /// When the connection is gone, silent for too long, or not speaking NBD.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        expect_magic(u64::from(be_u32(&header[0..])), u64::from(SIMPLE_REPLY_MAGIC))?;
        let (error, cookie) = (be_u32(&header[4..]), be_u64(&header[8..]));
        let length = self.read_lengths.remove(&cookie).filter(|_| error == 0).unwrap_or(0);
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(Reply { cookie, error, data })
    }

    /// Sends one request and waits for its reply, while no other is in flight.
    #[track_caller]
    pub fn call(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> Reply {
        let sent = self.submit(command, offset, length, payload);
        let cookie = sent.unwrap_or_else(|error| panic!("sending {command:?} at {offset}: {error}"));
        let reply = self.reply().unwrap_or_else(|error| panic!("{command:?} of {length} at {offset}: {error}"));
        assert_eq!(reply.cookie, cookie, "the only request in flight is the one answered");
        reply
    }

    /// Writes `data` at `offset`; it must succeed.
    #[track_caller]
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("a request's length fits 32 bits");
        let reply = self.call(Command::Write, offset as u64, length, data);
        assert_eq!(reply.error, 0, "write of {length} at {offset}");
    }

    /// Reads `length` bytes at `offset`; it must succeed.
    #[must_use]
    #[track_caller]
    pub fn read(&mut self, offset: usize, length: usize) -> Vec<u8> {
        let length = u32::try_from(length).expect("a request's length fits 32 bits");
        let reply = self.call(Command::Read, offset as u64, length, &[]);
        assert_eq!(reply.error, 0, "read of {length} at {offset}");
        reply.data
    }

    /// Flushes; it must succeed.
    #[track_caller]
    pub fn flush(&mut self) {
        assert_eq!(self.call(Command::Flush, 0, 0, &[]).error, 0, "flush");
    }

    /// Ends the connection as the protocol asks.
    pub fn disconnect(mut self) {
        // The server closes without a reply, perhaps before it read everything.
        drop(self.submit(Command::Disconnect, 0, 0, &[]));
    }

    fn send(&mut self, flags: u16, command: Command, offset: u64, length: u32, payload: &[u8]) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
        message.extend(flags.to_be_bytes());
        message.extend((command as u16).to_be_bytes());
        message.extend(cookie.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(length.to_be_bytes());
        message.extend(payload);
        if command == Command::Read {
            self.read_lengths.insert(cookie, usize::try_from(length).expect("32 bits fit a size"));
        }
        self.stream.write_all(&message)?;
        Ok(cookie)
    }

    /// As [`Client::connect`].
    ///
    /// # Errors
    /// When the server does not take the connection.
    pub fn try_connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(REPLY_TIME_MAX))?;
        stream.set_write_timeout(Some(REPLY_TIME_MAX))?;
        let mut client = Self { stream, size: 0, block_sizes: None, next_cookie: 1, read_lengths: HashMap::new() };
        client.negotiate()?;
        Ok(client)
    }

    fn negotiate(&mut self) -> io::Result<()> {
        let mut greeting = [0; 18];
        self.stream.read_exact(&mut greeting)?;
        expect_magic(be_u64(&greeting[0..]), u64::from_be_bytes(*b"NBDMAGIC"))?;
        expect_magic(be_u64(&greeting[8..]), u64::from_be_bytes(*OPTION_MAGIC))?;
        let mut hello = u32::from(FIXED_NEWSTYLE_NO_ZEROES).to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC);
        hello.extend(OPTION_GO.to_be_bytes());
        hello.extend(8u32.to_be_bytes());
        hello.extend(0u32.to_be_bytes()); // the default export's name is empty
        hello.extend(1u16.to_be_bytes());
        hello.extend(INFO_BLOCK_SIZE.to_be_bytes());
        self.stream.write_all(&hello)?;
        loop {
            let mut header = [0; 20];
            self.stream.read_exact(&mut header)?;
            expect_magic(be_u64(&header[0..]), OPTION_REPLY_MAGIC)?;
            let length = usize::try_from(be_u32(&header[16..])).expect("32 bits fit a size");
            if length > 64 << 10 {
                return Err(io::Error::other("an option reply of more than 64 KiB"));
            }
            let mut data = vec![0; length];
            self.stream.read_exact(&mut data)?;
            match be_u32(&header[12..]) {
                REPLY_ACK => return Ok(()),
                REPLY_INFO => self.learn(&data),
                other => return Err(io::Error::other(format!("NBD_OPT_GO was answered with {other:#x}"))),
            }
        }
    }

    fn learn(&mut self, info: &[u8]) {
        match (u16::from_be_bytes([info[0], info[1]]), info.len()) {
            (INFO_EXPORT, 12) => self.size = be_u64(&info[2..]),
            (INFO_BLOCK_SIZE, 14) => self.block_sizes = Some([2, 6, 10].map(|at| be_u32(&info[at..]))),
            _ => {}
        }
    }
}

fn expect_magic(found: u64, expected: u64) -> io::Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(io::Error::other(format!("magic {found:#x} instead of {expected:#x}")))
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn be_u64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}
