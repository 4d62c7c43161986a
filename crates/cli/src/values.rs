//! Values of options that several commands have: sizes, times, rates, slots.

use std::time::Duration;

use uraid_layout::{Bytes, MemberIndex, MemberSet};

/// The largest user ID: the one above means none.
pub(crate) const UID_MAX: u32 = u32::MAX - 1;

/// The most bytes or requests per second that a limit may be. Nothing is that fast.
const RATE_MAX: u64 = 1 << 50;

/// How fast something may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) Option<Bytes>);

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

/// How many requests a second there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operations(pub(crate) Option<u64>);

/// The least memory that is good for anything. Less is more likely a number without its unit.
const MEMORY_MIN: Bytes = Bytes(64 << 10);

/// An amount of memory.
pub(crate) fn memory(text: &str) -> Result<Bytes, String> {
    match bytes(text)? {
        size if size == Bytes(0) || size >= MEMORY_MIN => Ok(size),
        size => Err(format!("{} bytes are too few: write a unit, such as 64M", size.0)),
    }
}

/// Requests a second such as 500, or `none`.
pub(crate) fn operations(text: &str) -> Result<Operations, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(Operations(None)),
        (_, Ok(count @ 1..=RATE_MAX)) => Ok(Operations(Some(count))),
        (_, Ok(count)) if count > RATE_MAX => {
            Err(format!("'{text}' is more than anything does: write none for no limit"))
        }
        _ => Err(format!("'{text}' is not none, nor a number of requests a second such as 500")),
    }
}

/// Bytes a second such as 50M, or `none`.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    match (text, bytes(text)) {
        ("none", _) => Ok(Rate(None)),
        (_, Ok(rate)) if rate.0 > RATE_MAX => {
            Err(format!("'{text}' is more than anything does: write none for no limit"))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_nothing_reaches_is_refused() {
        assert_eq!(rate("1024T"), Ok(Rate(Some(Bytes(RATE_MAX)))));
        assert_eq!(operations("1125899906842624"), Ok(Operations(Some(RATE_MAX))));
        for text in ["18446744073709551615", "1125899906842625"] {
            assert!(rate(text).unwrap_err().contains("write none"), "{text}");
            assert!(operations(text).unwrap_err().contains("write none"), "{text}");
        }
        for text in ["0", "-1", "fast"] {
            assert!(rate(text).unwrap_err().contains("such as 50M"), "{text}");
            assert!(operations(text).unwrap_err().contains("such as 500"), "{text}");
        }
    }
}
