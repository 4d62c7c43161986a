//! Disks with a volatile write cache: a write is answered when it is in memory, and only a flush makes it durable.
//!
//! Killing QEMU loses nothing that it gave to the host, so an image file alone can't show a flush that is missing.
//! QEMU therefore reaches these disks over NBD, one connection a disk. When the power goes, each sector that no flush
//! covered becomes any version that it had since the last one: the durable one, the newest, or one between.
//!
//! QEMU speaks the protocol's old handshake to a server without export names, and nothing else connects.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, anyhow};
use uraid_tests::image::{Random, SECTOR};

/// Sectors in a disk's cache; one that has more writes all of them out, as a disk may at any time.
const CACHED_MAX: usize = (16 << 20) / SECTOR;
/// The most data of one request: QEMU's own bound.
const REQUEST_BYTES_MAX: usize = 32 << 20;

const OLD_HANDSHAKE: [[u8; 8]; 2] = [*b"NBDMAGIC", *b"\x00\x00\x42\x02\x81\x86\x12\x53"];
const RESERVED_BYTES: usize = 124;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// `NBD_FLAG_HAS_FLAGS`, `SEND_FLUSH`, `SEND_FUA`, `SEND_WRITE_ZEROES`.
const EXPORT_FLAGS: u32 = 1 | 1 << 2 | 1 << 3 | 1 << 6;
const COMMAND_FLAG_FUA: u16 = 1;
const EINVAL: u32 = 22;

/// The disks of one guest, served until it ends.
pub(super) struct VolatileDisks {
    servers: Vec<JoinHandle<io::Result<Disk>>>,
    sockets: Vec<PathBuf>,
}

impl VolatileDisks {
    /// Serves each of `images` on a socket in `directory`.
    ///
    /// # Errors
    /// When an image can't be opened or a socket can't be made.
    pub(super) fn serve(images: &[PathBuf], directory: &Path) -> anyhow::Result<Self> {
        let (mut servers, mut sockets) = (Vec::new(), Vec::new());
        for (slot, image) in images.iter().enumerate() {
            let disk = Disk::open(image).with_context(|| format!("opening {}", image.display()))?;
            let socket = directory.join(format!("disk{slot}.sock"));
            let _ = fs::remove_file(&socket);
            let listener = UnixListener::bind(&socket).with_context(|| format!("making {}", socket.display()))?;
            servers.push(thread::spawn(move || disk.serve(listener.accept()?.0)));
            sockets.push(socket);
        }
        Ok(Self { servers, sockets })
    }

    /// Where QEMU finds the disks.
    pub(super) fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Cuts the power of disks whose guest has ended: how many sectors had something to lose, and how many of them did.
    ///
    /// # Errors
    /// When an image can't be written or the guest spoke no NBD.
    pub(super) fn cut_power(self, random: &mut Random) -> anyhow::Result<(usize, usize)> {
        let (mut cached, mut lost) = (0, 0);
        for server in self.servers {
            let mut disk = server.join().map_err(|_| anyhow!("a disk's thread panicked"))??;
            cached += disk.cache.len();
            lost += disk.cut_power(random)?;
        }
        Ok((cached, lost))
    }
}

/// What a sector holds; none: zeros.
type Sector = Option<Box<[u8; SECTOR]>>;

/// A disk: what is durable, and each sector's versions since the last flush, oldest first.
struct Disk {
    image: File,
    bytes: u64,
    cache: BTreeMap<u64, Vec<Sector>>,
}

impl Disk {
    fn open(image: &Path) -> io::Result<Self> {
        let image = File::options().read(true).write(true).open(image)?;
        let bytes = image.metadata()?.len();
        Ok(Self { image, bytes, cache: BTreeMap::new() })
    }

    /// Answers one client, in order, until it is gone.
    fn serve(mut self, mut client: UnixStream) -> io::Result<Self> {
        let mut greeting = OLD_HANDSHAKE.concat();
        greeting.extend(self.bytes.to_be_bytes());
        greeting.extend(EXPORT_FLAGS.to_be_bytes());
        greeting.extend([0; RESERVED_BYTES]);
        // A guest whose plug was pulled leaves in the middle of anything.
        if client.write_all(&greeting).is_ok() {
            while let Some(reply) = Request::receive(&mut client)?.map(|request| self.answer(&request)).transpose()? {
                if client.write_all(&reply).is_err() {
                    break;
                }
            }
        }
        Ok(self)
    }

    /// Does what is asked: the reply's bytes.
    fn answer(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        let is_inside = request.offset.checked_add(request.length as u64).is_some_and(|end| end <= self.bytes);
        let is_whole = request.offset.is_multiple_of(SECTOR as u64) && request.length.is_multiple_of(SECTOR);
        let mut error = 0;
        match request.kind {
            Kind::Flush => self.flush()?,
            _ if !is_inside || !is_whole => error = EINVAL,
            Kind::Read => data = self.read(request.offset, request.length)?,
            Kind::Write => self.write(request, |part| Some(Box::new(request.sector(part))))?,
            Kind::WriteZeroes => self.write(request, |_| None)?,
            Kind::Unknown => error = EINVAL,
        }
        let header = [&REPLY_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &request.cookie].concat();
        Ok([header, data].concat())
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length];
        self.image.read_exact_at(&mut data, offset)?;
        let first = offset / SECTOR as u64;
        for (&number, versions) in self.cache.range(first..first + (length / SECTOR) as u64) {
            let at = usize::try_from(number - first).expect("inside the request") * SECTOR;
            put(&mut data[at..at + SECTOR], versions.last().expect("a cached sector has a version"));
        }
        Ok(data)
    }

    fn write(&mut self, request: &Request, sector: impl Fn(usize) -> Sector) -> io::Result<()> {
        for part in 0..request.length / SECTOR {
            let number = request.offset / SECTOR as u64 + part as u64;
            if request.is_fua {
                self.cache.remove(&number);
                write_out(&self.image, number, &sector(part))?;
            } else {
                self.cache.entry(number).or_default().push(sector(part));
            }
        }
        if self.cache.len() > CACHED_MAX { self.flush() } else { Ok(()) }
    }

    /// Makes the newest version of each sector durable.
    fn flush(&mut self) -> io::Result<()> {
        for (number, versions) in std::mem::take(&mut self.cache) {
            write_out(&self.image, number, versions.last().expect("a cached sector has a version"))?;
        }
        Ok(())
    }

    /// Lets chance say which version of each cached sector is there afterwards: how many are older than the newest.
    fn cut_power(&mut self, random: &mut Random) -> io::Result<usize> {
        // From a disk that had written nothing out to one that had written out everything.
        let kept_of_four = random.below(5);
        let mut lost = 0;
        for (number, versions) in std::mem::take(&mut self.cache) {
            let kept = if random.below(4) < kept_of_four { 1 + random.below(versions.len()) } else { 0 };
            lost += usize::from(kept < versions.len());
            if kept > 0 {
                write_out(&self.image, number, &versions[kept - 1])?;
            }
        }
        Ok(lost)
    }
}

fn write_out(image: &File, number: u64, sector: &Sector) -> io::Result<()> {
    let mut bytes = [0; SECTOR];
    put(&mut bytes, sector);
    image.write_all_at(&bytes, number * SECTOR as u64)
}

fn put(bytes: &mut [u8], sector: &Sector) {
    match sector {
        Some(content) => bytes.copy_from_slice(&content[..]),
        None => bytes.fill(0),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    WriteZeroes,
    Unknown,
}

/// A request; `length` is in bytes.
struct Request {
    kind: Kind,
    is_fua: bool,
    cookie: [u8; 8],
    offset: u64,
    length: usize,
    data: Vec<u8>,
}

impl Request {
    /// The client's next request; none when it has left, whether it said so or not.
    fn receive(client: &mut UnixStream) -> io::Result<Option<Self>> {
        const DISCONNECT: u16 = 2;
        let mut header = [0; 28];
        if client.read_exact(&mut header).is_err() {
            return Ok(None);
        }
        let field =
            |range: std::ops::Range<usize>| header[range].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let (flags, code, length) = (field(4..6), field(6..8), field(24..28));
        let length = usize::try_from(length).expect("32 bits fit an address");
        let kind = match code {
            0 => Kind::Read,
            1 => Kind::Write,
            3 => Kind::Flush,
            6 => Kind::WriteZeroes,
            _ => Kind::Unknown,
        };
        if field(0..4) != u64::from(REQUEST_MAGIC) || (kind != Kind::WriteZeroes && length > REQUEST_BYTES_MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the guest's disk was asked for no NBD request"));
        }
        if code == u64::from(DISCONNECT) {
            return Ok(None);
        }
        let mut data = vec![0; if kind == Kind::Write { length } else { 0 }];
        if client.read_exact(&mut data).is_err() {
            return Ok(None);
        }
        let is_fua = flags & u64::from(COMMAND_FLAG_FUA) != 0;
        let cookie = header[8..16].try_into().expect("eight bytes");
        Ok(Some(Self { kind, is_fua, cookie, offset: field(16..24), length, data }))
    }

    fn sector(&self, part: usize) -> [u8; SECTOR] {
        self.data[part * SECTOR..(part + 1) * SECTOR].try_into().expect("a sector's bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: Kind, sector: u64, data: &[u8]) -> Request {
        let (offset, length) = (sector * SECTOR as u64, data.len());
        Request { kind, is_fua: false, cookie: *b"a cookie", offset, length, data: data.to_vec() }
    }

    fn disk(scratch: &tempfile::TempDir) -> (Disk, PathBuf) {
        let image = scratch.path().join("image");
        fs::write(&image, vec![1; 8 * SECTOR]).unwrap();
        (Disk::open(&image).unwrap(), image)
    }

    #[test]
    fn only_what_was_flushed_is_durable() {
        let scratch = tempfile::tempdir().unwrap();
        let (mut disk, image) = disk(&scratch);
        disk.answer(&request(Kind::Write, 2, &[2; 2 * SECTOR])).unwrap();
        assert_eq!(fs::read(&image).unwrap(), vec![1; 8 * SECTOR]);
        let reply = disk.answer(&request(Kind::Read, 1, &[0; 2 * SECTOR])).unwrap();
        assert_eq!(reply[16..], [[1; SECTOR], [2; SECTOR]].concat());
        disk.answer(&request(Kind::Flush, 0, &[])).unwrap();
        let expected = [vec![1; 2 * SECTOR], vec![2; 2 * SECTOR], vec![1; 4 * SECTOR]].concat();
        assert_eq!(fs::read(&image).unwrap(), expected);
        disk.answer(&Request { is_fua: true, ..request(Kind::WriteZeroes, 7, &[0; SECTOR]) }).unwrap();
        assert_eq!(fs::read(&image).unwrap()[7 * SECTOR..], [0; SECTOR]);
    }

    #[test]
    fn a_cut_leaves_every_version_sometimes_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let mut seen = [false; 4];
        for seed in 0..200 {
            let (mut disk, image) = disk(&scratch);
            disk.answer(&request(Kind::Write, 5, &[2; SECTOR])).unwrap();
            disk.answer(&request(Kind::WriteZeroes, 5, &[0; SECTOR])).unwrap();
            disk.answer(&request(Kind::Write, 5, &[3; SECTOR])).unwrap();
            let lost = disk.cut_power(&mut Random::new(seed)).unwrap();
            let content = fs::read(&image).unwrap();
            let version = usize::from(content[5 * SECTOR]);
            assert_eq!(content[5 * SECTOR..6 * SECTOR], [content[5 * SECTOR]; SECTOR]);
            assert_eq!(lost, usize::from(version != 3));
            seen[version] = true;
        }
        assert_eq!(seen, [true; 4]);
    }

    #[test]
    fn requests_beyond_the_end_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let (mut disk, image) = disk(&scratch);
        for sector in [7, u64::MAX / SECTOR as u64] {
            let reply = disk.answer(&request(Kind::Write, sector, &[2; 2 * SECTOR])).unwrap();
            assert_eq!(reply[4..8], EINVAL.to_be_bytes());
        }
        disk.flush().unwrap();
        assert_eq!(fs::read(&image).unwrap(), vec![1; 8 * SECTOR]);
    }
}
