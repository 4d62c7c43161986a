//! What becomes of a served array when its table in the configuration file has changed.

use uraid_serve::fleet::Change;
use uraid_serve::protocol::Request;

use crate::config::Setting;
use crate::config::tables::{ArrayTable, Settings};
use crate::serve::args::{CacheName, MAX_ERRORS, READ_DEADLINE, ServeArgs, WRITE_DEADLINE};
use crate::values::Rate;

/// What `uraid set` changes, too.
const IN_PLACE: [&str; 9] = [
    "rebuild-limit",
    "scrub-limit",
    "reshape-limit",
    "client-limit",
    "client-iops-limit",
    "cache",
    "read-deadline",
    "write-deadline",
    "max-errors",
];

/// What it takes to get from one table to another one for the same array.
pub(super) fn change(old: &ArrayTable, new: &ArrayTable) -> Change {
    let (before, after) = (&old.settings, &new.settings);
    let keys = changed(&before.settings, &after.settings);
    if keys.is_empty() && old.is_shared == new.is_shared {
        return Change::None;
    }
    let is_cached = |args: &ServeArgs| args.cache.cache != CacheName::None && !args.read_only;
    let is_in_place = |key: &String| {
        let may_be = key != "cache" || is_cached(&before.args) && is_cached(&after.args);
        IN_PLACE.contains(&key.as_str()) && may_be
    };
    if keys.iter().all(is_in_place) && old.is_shared == new.is_shared {
        Change::InPlace(keys.iter().map(|key| request(key, after)).collect())
    } else {
        Change::Restart(keys)
    }
}

/// The keys that have another value, or none any more, or one now.
fn changed(old: &[Setting], new: &[Setting]) -> Vec<String> {
    let lacking = |some: &[Setting], others: &[Setting]| -> Vec<String> {
        some.iter().filter(|setting| !others.contains(setting)).map(|setting| setting.key.clone()).collect()
    };
    let mut keys = [lacking(old, new), lacking(new, old)].concat();
    keys.sort();
    keys.dedup();
    keys
}

/// The request that makes a setting that of the new arguments.
fn request(key: &str, Settings { settings, args }: &Settings) -> Request {
    let rate = |rate: Rate| rate.0.map(|bytes| bytes.0);
    let set = |default: &str| {
        let said = settings.iter().find(|setting| setting.key == key).and_then(|setting| setting.values.last());
        let value = said.map_or_else(|| default.to_owned(), |value| value.to_string_lossy().into_owned());
        Request::Set { key: key.to_owned(), value }
    };
    match key {
        "rebuild-limit" => Request::RebuildLimit { bytes_per_second: rate(args.limits.rebuild_limit) },
        "scrub-limit" => Request::ScrubLimit { bytes_per_second: rate(args.limits.scrub_limit) },
        "reshape-limit" => Request::ReshapeLimit { bytes_per_second: rate(args.limits.reshape_limit) },
        "client-limit" => Request::ClientLimit { bytes_per_second: args.clients.rates().bytes_per_second },
        "client-iops-limit" => {
            Request::ClientIopsLimit { operations_per_second: args.clients.rates().operations_per_second }
        }
        "cache" => set("writeback"),
        "read-deadline" => set(READ_DEADLINE),
        "write-deadline" => set(WRITE_DEADLINE),
        "max-errors" => set(MAX_ERRORS),
        _ => unreachable!("{key} can't be set while the array is served"),
    }
}
