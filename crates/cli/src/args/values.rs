//! Values of options that are more than a number or a word: sizes, times, rates, slots, addresses.

use std::time::Duration;

use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet};

use super::ListenAt;

/// The most that can be read ahead of a reader.
const READ_AHEAD_MAX: Bytes = Bytes(32 << 20);

/// The least memory that is good for anything. Less is more likely a number without its unit.
const MEMORY_MIN: Bytes = Bytes(64 << 10);

/// How fast something may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) Option<Bytes>);

/// How much to read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// Where it pays.
    #[default]
    Auto,
    /// Always up to this; zero: never.
    UpTo(Bytes),
}

/// How long to look for the next command before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BusyPoll {
    /// Where it pays.
    Auto,
    /// Always this long; zero: never.
    For(Duration),
}

/// A size, or none: as much as there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most(pub(crate) Option<Bytes>);

/// A size such as 4096, 64K, 1G or 1GiB; all units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix("iB").or(unit.strip_suffix('B')).unwrap_or(unit);
    let shift = match unit {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err(format!("'{text}' is not a size; write for example 4096, 64K, 512M or 1G")),
    };
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is not a size; write for example 64K or 1G"))?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' does not fit 64 bits"))?;
    Ok(Bytes(bytes))
}

/// An amount of memory.
pub(super) fn memory(text: &str) -> Result<Bytes, String> {
    match bytes(text)? {
        size if size == Bytes(0) || size >= MEMORY_MIN => Ok(size),
        size => Err(format!("{} bytes are too few: write a unit, such as 64M", size.0)),
    }
}

pub(super) fn bytes_or_max(text: &str) -> Result<Most, String> {
    if text == "max" { Ok(Most(None)) } else { bytes(text).map(|bytes| Most(Some(bytes))) }
}

pub(super) fn rate(text: &str) -> Result<Rate, String> {
    match (text, bytes(text)) {
        ("none", _) => Ok(Rate(None)),
        (_, Ok(rate)) if rate.0 > 0 => Ok(Rate(Some(rate))),
        _ => Err(format!("'{text}' is not none, nor bytes a second such as 50M")),
    }
}

/// A time such as `30d`.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        "w" => 7 * 86400,
        _ => 0,
    };
    let period = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)).filter(|&period| period > 0);
    period.map(Duration::from_secs).ok_or_else(|| format!("'{text}' is not a time; write for example 30d, 4w or 12h"))
}

pub(super) fn lba(text: &str) -> Result<Lba, String> {
    text.parse().map(Lba).map_err(|_| format!("'{text}' is not a sector number"))
}

/// Slots such as `1,3`.
pub(crate) fn members(text: &str) -> Result<MemberSet, String> {
    let slots = text.split(',').filter(|slot| !slot.is_empty());
    slots
        .map(|slot| match slot.trim().parse() {
            Ok(index @ 0..64) => Ok(MemberIndex(index)),
            _ => Err(format!("'{slot}' is not a slot; write for example 1,3")),
        })
        .collect()
}

/// A port of this machine's own, or an address or a name with a port that others may reach.
pub(super) fn metrics_address(text: &str) -> Result<ListenAt, String> {
    ListenAt::parse_with_port(text).ok_or_else(|| {
        format!("'{text}' is not a port, nor an address or a name with one; write for example 9187 or storage.lan:9187")
    })
}

pub(super) fn read_ahead(text: &str) -> Result<ReadAhead, String> {
    match (text, bytes(text)) {
        ("auto", _) => Ok(ReadAhead::Auto),
        ("off", _) => Ok(ReadAhead::UpTo(Bytes(0))),
        (_, Ok(size)) if size <= READ_AHEAD_MAX => Ok(ReadAhead::UpTo(size)),
        _ => Err(format!("'{text}' is not auto, off or a size of up to 32M")),
    }
}

pub(super) fn busy_poll(text: &str) -> Result<BusyPoll, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(BusyPoll::Auto),
        ("off", _) => Ok(BusyPoll::For(Duration::ZERO)),
        (_, Ok(microseconds @ 0..=1000)) => Ok(BusyPoll::For(Duration::from_micros(microseconds))),
        _ => Err(format!("'{text}' is not auto, off or a number of microseconds up to 1000")),
    }
}
