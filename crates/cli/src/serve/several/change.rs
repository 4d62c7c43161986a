//! What becomes of a served array when its table in the configuration file has changed.

use std::path::PathBuf;

use uraid_serve::fleet::{Change, Named};
use uraid_serve::protocol::Request;

use crate::config::Setting;
use crate::config::tables::{ArrayTable, Settings};
use crate::serve::args::{CacheName, HEDGE, MAX_ERRORS, READ_DEADLINE, REJOIN_AFTER, ServeArgs, WRITE_DEADLINE};
use crate::values::Rate;

/// What `uraid set` changes, too.
const IN_PLACE: [&str; 11] = [
    "rebuild-limit",
    "scrub-limit",
    "reshape-limit",
    "client-limit",
    "client-iops-limit",
    "cache",
    "read-deadline",
    "write-deadline",
    "max-errors",
    "rejoin-after",
    "hedge",
];

/// What commands change while the array is served.
const NAMES: [&str; 2] = ["members", "spare"];

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
    } else if keys.iter().all(|key| NAMES.contains(&key.as_str())) && old.is_shared == new.is_shared {
        Change::Renamed(named(&before.args, &after.args), keys)
    } else {
        Change::Restart(keys)
    }
}

/// The paths that the new arguments have.
fn named(old: &ServeArgs, new: &ServeArgs) -> Named {
    let all: Vec<PathBuf> = new.members.iter().chain(&new.spares).cloned().collect();
    let is_new = |path: &&PathBuf| !old.members.iter().chain(&old.spares).any(|known| known == *path);
    Named { new: all.iter().filter(is_new).cloned().collect(), all }
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
        "rejoin-after" => set(REJOIN_AFTER),
        "hedge" => set(HEDGE),
        _ => unreachable!("{key} can't be set while the array is served"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tables::tests::tables;

    /// The change from an array with one text in its table to the same with another one.
    fn between(old: &str, new: &str) -> Change {
        let table = |text: &str| {
            let text = format!("socket = '/s'\n[array.a]\nmembers = ['x', 'y']\n{text}");
            tables(&[], &text).unwrap().arrays.remove(0)
        };
        change(&table(old), &table(new))
    }

    fn restart(keys: &[&str]) -> Change {
        Change::Restart(keys.iter().map(|key| (*key).to_owned()).collect())
    }

    #[test]
    fn what_can_be_set_is_set() {
        let set = |key: &str, value: &str| Request::Set { key: key.into(), value: value.into() };
        for (old, new, request) in [
            ("", "rebuild-limit = '5M'", Request::RebuildLimit { bytes_per_second: Some(5 << 20) }),
            ("scrub-limit = '5M'", "", Request::ScrubLimit { bytes_per_second: None }),
            ("", "reshape-limit = 4096", Request::ReshapeLimit { bytes_per_second: Some(4096) }),
            ("client-limit = '1M'", "client-limit = '2M'", Request::ClientLimit { bytes_per_second: Some(2 << 20) }),
            ("", "client-iops-limit = 9", Request::ClientIopsLimit { operations_per_second: Some(9) }),
            ("cache = 'writethrough'", "", set("cache", "writeback")),
            ("", "read-deadline = '7s'", set("read-deadline", "7s")),
            ("write-deadline = 'off'", "", set("write-deadline", "30s")),
            ("max-errors = 7", "", set("max-errors", "20")),
            ("rejoin-after = 'off'", "", set("rejoin-after", "10s")),
            ("hedge = 'off'", "", set("hedge", "auto")),
        ] {
            assert_eq!(between(old, new), Change::InPlace(vec![request]), "{old} -> {new}");
        }
        assert_eq!(between("degraded = false", "degraded = false"), Change::None);
    }

    #[test]
    fn the_rest_takes_a_restart() {
        assert_eq!(between("", "spare = 's'\nmax-errors = 7"), restart(&["max-errors", "spare"]));
        assert_eq!(between("cache = 'none'", ""), restart(&["cache"]));
        assert_eq!(between("", "cache = 'none'"), restart(&["cache"]));
        let read_only = |cache: &str| format!("read-only = true\ncache = '{cache}'");
        assert_eq!(between(&read_only("writeback"), &read_only("writethrough")), restart(&["cache"]));
        assert_eq!(between("", "socket = '/t'"), restart(&["socket"]));
        assert_eq!(between("export = 'x'", ""), restart(&["export"]));
    }

    #[test]
    fn other_members_may_be_those_that_the_array_has() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        let named = Named { all: paths(&["x", "y", "s"]), new: paths(&["s"]) };
        assert_eq!(between("", "spare = 's'"), Change::Renamed(named, vec!["spare".into()]));
    }
}
