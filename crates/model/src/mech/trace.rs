//! Recorded requests: block traces as text, and a source that plays them.
//!
//! - *CSV*: lines of `seconds,R or W,byte offset,bytes`; a first line that begins with a letter is skipped.
//! - *SPC*: the Storage Performance Council's lines of `unit,block,bytes,R or W,seconds`, in blocks of 512 bytes;
//!   fields beyond these are skipped. Requests of sizes that are not whole sectors are rounded up to them.
//! - *MSR*: Microsoft Research Cambridge's lines of `ticks,host,disk,Read or Write,offset,bytes,response`, in ticks of
//!   100 ns, which count from the first line's.
//! - *blkparse*: its default lines, of which those of action Q (a request that was queued) with R or W in their flags
//!   count: `8,0 1 15 0.000123 4242 Q WS 2048 + 8 [fio]`, in sectors.
//! - *fio iolog*, version 2: `file read|write offset bytes` in bytes, without times, or version 3 with milliseconds
//!   before the file; what is not a read or a write is skipped.
//!
//! A request of no bytes, or of what are not whole sectors, is refused. Where in the array a request is, is for
//! [`Replay::new`] to say: offsets beyond it are taken modulo its capacity.

use uraid_layout::{Bytes, Lba, Sectors};

use super::{Error, Nanos};
use super::{Request, Source};

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values.
    Csv,
    /// The Storage Performance Council's format, revision 1.0.1.
    Spc,
    /// Microsoft Research Cambridge's format, as SNIA publishes it.
    Msr,
    /// What `blkparse` prints.
    Blkparse,
    /// fio's `write_iolog`, versions 2 and 3.
    Iolog,
}

impl Format {
    /// The format that a trace's first line shows.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        match first.split(',').count() {
            _ if first.starts_with("fio version") => Self::Iolog,
            4 => Self::Csv,
            7 => Self::Msr,
            5.. => Self::Spc,
            _ => Self::Blkparse,
        }
    }
}

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was made.
    pub at: Nanos,
    /// Whether it writes.
    pub is_write: bool,
    /// Where it begins.
    pub offset: Bytes,
    /// How much it is.
    pub len: Bytes,
}

/// When recorded requests are made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// When they were made, whatever is under way.
    Recorded,
    /// Each by the next process that has nothing under way.
    AsFast,
}

/// Plays a trace once.
#[derive(Clone, Debug)]
pub struct Replay {
    records: Vec<Record>,
    pace: Pace,
    capacity: Sectors,
    at: usize,
}

/// The largest request: 1 GiB.
const LEN_MAX: u64 = 1 << 30;

/// Reads a trace.
///
/// # Errors
/// [`Error::Trace`] with the first line that makes no sense.
pub fn parse(text: &str, format: Format) -> Result<Vec<Record>, Error> {
    let mut records: Vec<Record> = Vec::new();
    for (index, line) in text.lines().enumerate().map(|(index, line)| (index, line.trim())) {
        let is_heading =
            index == 0 && format == Format::Csv && line.starts_with(|first: char| first.is_ascii_alphabetic());
        if line.is_empty() || is_heading {
            continue;
        }
        let error = |reason| Error::Trace { line: index + 1, reason, text: line.chars().take(80).collect() };
        let record = match format {
            Format::Csv => csv(line).map(Some),
            Format::Spc => spc(line).map(Some),
            Format::Msr => msr(line).map(Some),
            Format::Blkparse => blkparse(line),
            Format::Iolog => iolog(line),
        };
        let Some(record) = record.map_err(error)? else { continue };
        if record.len.0 == 0 || record.len.0 > LEN_MAX {
            return Err(error("a request has 1 byte to 1 GiB"));
        }
        if !record.len.0.is_multiple_of(512) || !record.offset.0.is_multiple_of(512) {
            return Err(error("a request is of whole sectors of 512 bytes"));
        }
        records.push(record);
    }
    records.sort_by_key(|record| record.at);
    if let (Format::Msr, Some(first)) = (format, records.first().map(|record| record.at.0)) {
        records.iter_mut().for_each(|record| record.at.0 -= first);
    }
    Ok(records)
}

fn csv(line: &str) -> Result<Record, &'static str> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [seconds, direction, offset, len] = fields[..] else { return Err("a line is seconds,R or W,offset,bytes") };
    let is_write = match direction {
        "W" | "w" => true,
        "R" | "r" => false,
        _ => return Err("the second field is R or W"),
    };
    Ok(Record { at: nanos(seconds)?, is_write, offset: Bytes(number(offset)?), len: Bytes(number(len)?) })
}

fn spc(line: &str) -> Result<Record, &'static str> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [_, block, len, direction, seconds, ..] = fields[..] else {
        return Err("a line is unit,block,bytes,R or W,seconds");
    };
    let is_write = match direction {
        "W" | "w" => true,
        "R" | "r" => false,
        _ => return Err("the fourth field is R or W"),
    };
    let offset = number(block)?.checked_mul(512).ok_or("the block is beyond 64 bits of bytes")?;
    let len = number(len)?.checked_next_multiple_of(512).ok_or("the size is beyond 64 bits")?;
    Ok(Record { at: nanos(seconds)?, is_write, offset: Bytes(offset), len: Bytes(len) })
}

fn msr(line: &str) -> Result<Record, &'static str> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [ticks, _, _, direction, offset, len, _] = fields[..] else {
        return Err("a line is ticks,host,disk,Read or Write,offset,bytes,response");
    };
    let is_write = match direction.to_ascii_lowercase().as_str() {
        "write" => true,
        "read" => false,
        _ => return Err("the fourth field is Read or Write"),
    };
    let at = number(ticks)?.checked_mul(100).ok_or("the time is beyond 64 bits of nanoseconds")?;
    Ok(Record { at: Nanos(at), is_write, offset: Bytes(number(offset)?), len: Bytes(number(len)?) })
}

fn blkparse(line: &str) -> Result<Option<Record>, &'static str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, seconds, _, "Q", flags, sector, "+", count, ..] = fields[..] else { return Ok(None) };
    let is_write = flags.contains('W');
    if !is_write && !flags.contains('R') {
        return Ok(None);
    }
    let bytes = |sectors: u64| sectors.checked_mul(512).map(Bytes).ok_or("the sector is beyond 64 bits of bytes");
    Ok(Some(Record { at: nanos(seconds)?, is_write, offset: bytes(number(sector)?)?, len: bytes(number(count)?)? }))
}

fn iolog(line: &str) -> Result<Option<Record>, &'static str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (at, fields) = match fields.first().map(|first| first.parse::<u64>()) {
        Some(Ok(milliseconds)) => {
            let at = milliseconds.checked_mul(1_000_000).ok_or("the time is beyond 64 bits of nanoseconds")?;
            (Nanos(at), &fields[1..])
        }
        _ => (Nanos(0), &fields[..]),
    };
    let [_, action @ ("read" | "write"), offset, len] = *fields else { return Ok(None) };
    Ok(Some(Record { at, is_write: action == "write", offset: Bytes(number(offset)?), len: Bytes(number(len)?) }))
}

fn number(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "a number is expected")
}

fn nanos(seconds: &str) -> Result<Nanos, &'static str> {
    let seconds: f64 = seconds.parse().map_err(|_| "a time in seconds is expected")?;
    if (0.0..=1e9).contains(&seconds) {
        Ok(Nanos((seconds * 1e9).round() as u64))
    } else {
        Err("a time is 0 to 10^9 seconds")
    }
}

impl Replay {
    /// Plays records to volume 0 of this capacity.
    ///
    /// # Errors
    /// When a request is larger than the array.
    pub fn new(records: Vec<Record>, pace: Pace, capacity: Sectors) -> Result<Self, Error> {
        let largest = records.iter().map(|record| record.len.whole_sectors()).max().unwrap_or_default();
        if largest > capacity {
            let rule = "at most the array's sectors";
            return Err(Error::Workload { field: "largest request", value: largest.0 as f64, rule });
        }
        Ok(Self { records, pace, capacity, at: 0 })
    }

    /// Plays from the first request again.
    pub fn rewind(&mut self) {
        self.at = 0;
    }

    fn request(&mut self) -> Option<(Nanos, Request)> {
        let record = self.records.get(self.at)?;
        self.at += 1;
        let len = record.len.whole_sectors();
        let lba = Lba(record.offset.whole_sectors().0 % (self.capacity.0 - len.0 + 1));
        Some((record.at, Request { volume: 0, is_write: record.is_write, lba, len }))
    }
}

impl Source for Replay {
    fn next(&mut self, _process: usize, _now: Nanos) -> Option<Request> {
        if self.pace == Pace::AsFast { self.request().map(|(_, request)| request) } else { None }
    }

    fn arrival(&mut self) -> Option<(Nanos, Request)> {
        if self.pace == Pace::Recorded { self.request() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ms: u64, is_write: bool, offset: u64, len: u64) -> Record {
        Record { at: Nanos(ms * 1_000_000), is_write, offset: Bytes(offset), len: Bytes(len) }
    }

    #[test]
    fn all_formats_are_read() {
        let expected = [record(0, false, 4096, 8192), record(250, true, 512, 512)];
        let csv = "time,op,offset,size\n0,R,4096,8192\n\n0.25, W, 512, 512\n";
        assert_eq!(parse(csv, Format::Csv).unwrap(), expected);
        let blkparse = "  8,0    1        1     0.000000000  4242  Q   R 8 + 16 [fio]\n  8,0    1        2     0.1  \
            4242  C   R 8 + 16 [0]\n\
                          8,0    1        3     0.250000000  4242  Q  WS 1 + 1 [fio]\n  8,0 1 4 0.3 4242 Q FN \
                          [fio]\nCPU0 (fio):\n Reads Queued: 1, 8KiB\n";
        assert_eq!(parse(blkparse, Format::Blkparse).unwrap(), expected);
        let spc = "0,8,8192,R,0.0\n1,1,500,w,0.25,extra\n";
        assert_eq!(parse(spc, Format::Spc).unwrap(), expected);
        let msr = "128166372003061629,usr,0,Read,4096,8192,41286\n128166372005561629,usr,0,Write,512,512,1\n";
        assert_eq!(parse(msr, Format::Msr).unwrap(), expected);
        let third = "fio version 3 iolog\n0 /dev/x add\n0 /dev/x open\n0 /dev/x read 4096 8192\n250 /dev/x write 512 \
            512\n251 /dev/x close\n";
        assert_eq!(parse(third, Format::Iolog).unwrap(), expected);
        let second = "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x read 4096 8192\n/dev/x close\n";
        assert_eq!(parse(second, Format::Iolog).unwrap(), expected[..1]);
        let all = [
            (csv, Format::Csv),
            (spc, Format::Spc),
            (msr, Format::Msr),
            (blkparse, Format::Blkparse),
            (third, Format::Iolog),
        ];
        for (text, format) in all {
            assert_eq!(Format::of(text), format, "{text}");
        }
    }

    #[test]
    fn lines_that_make_no_sense_are_named() {
        for (text, format, at) in [
            ("0,R,0,512\n0,X,0,512", Format::Csv, 2),
            ("0,R,0", Format::Csv, 1),
            ("-1,R,0,512", Format::Csv, 1),
            ("0,R,0,512\nnan,R,0,512", Format::Csv, 2),
            ("0,R,0,0", Format::Csv, 1),
            ("0,R,100,512", Format::Csv, 1),
            ("0,R,0,99999999999999999999", Format::Csv, 1),
            ("0,0,512,X,0", Format::Spc, 1),
            ("0,36028797018963968,512,R,0", Format::Spc, 1),
            ("0,0,512,R", Format::Spc, 1),
            ("8,0 1 1 0.0 1 Q R 18446744073709551615 + 1 [x]", Format::Blkparse, 1),
            ("x read 0 a", Format::Iolog, 1),
        ] {
            match parse(text, format) {
                Err(Error::Trace { line, .. }) => assert_eq!(line, at, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_replay_keeps_to_its_array_and_its_pace() {
        let records = vec![record(0, false, 0, 1024), record(5, true, 9 * 512, 1024)];
        assert!(Replay::new(records.clone(), Pace::AsFast, Sectors(1)).is_err());
        let mut fast = Replay::new(records.clone(), Pace::AsFast, Sectors(4)).unwrap();
        assert_eq!(fast.arrival(), None);
        let lbas: Vec<u64> = std::iter::from_fn(|| fast.next(0, Nanos(0))).map(|request| request.lba.0).collect();
        assert_eq!(lbas, [0, 9 % 3]);
        let mut paced = Replay::new(records, Pace::Recorded, Sectors(100)).unwrap();
        assert_eq!(paced.next(0, Nanos(0)), None);
        let times: Vec<u64> = std::iter::from_fn(|| paced.arrival()).map(|(at, _)| at.0).collect();
        assert_eq!(times, [0, 5_000_000]);
    }
}
