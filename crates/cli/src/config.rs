//! `uraid serve --config`: members and options of `uraid serve` in a TOML file, under their long names.
//!
//! The command line takes precedence over the file. The file is converted into the words of a command line, so that
//! options have the same meaning and the same checks in both.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::path::{PathBuf, absolute};

use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, FromArgMatches as _};
use toml::{Table, Value};

use crate::args::{self, Cli, Command};
use crate::config_file;
use crate::misuse::Misuse;

/// The default of `wait-for-members` in a file. The file serves for starting the machine, when disks appear late.
const WAIT: (&str, &str) = ("wait-for-members", "30s");

/// If the command line sets any of these, it replaces all of them in the file: they all say where to listen.
const PLACES: [&str; 2] = ["socket", "listen"];

/// The key of the members.
const MEMBERS: &str = "members";

/// The command line, extended with the settings of the file that it names.
pub(crate) fn expand(cli: Cli, given: &ArgMatches) -> Result<Cli> {
    let Command::Serve(serve) = &cli.command else { return Ok(cli) };
    let (Some(path), Some(("serve", given))) = (&serve.config, given.subcommand()) else { return Ok(cli) };
    let text = config_file::read(path).with_context(|| format!("can't read {}", path.display()))?;
    let fault = |text: String| Misuse(format!("{}: {}", path.display(), text.trim_end()));
    let words = words(&text, given).map_err(fault)?;
    let matches = args::command().try_get_matches_from(words).map_err(|error| fault(said(&error)))?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| fault(said(&error)))?;
    if let Command::Serve(serve) = &mut cli.command {
        serve.config = Some(absolute(path)?);
    }
    Ok(cli)
}

/// The command line that combines the given one with a file.
fn words(text: &str, given: &ArgMatches) -> Result<Vec<OsString>, String> {
    let mut file: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    if !file.contains_key(WAIT.0) {
        file.insert(WAIT.0.to_owned(), Value::String(WAIT.1.to_owned()));
    }
    let mut command = args::command();
    command.build();
    let serve = command.find_subcommand("serve").expect("there is such a command");
    let is_given = |argument: &&Arg| given.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
    if serve.get_arguments().filter(is_given).any(|argument| PLACES.contains(&key(argument))) {
        PLACES.iter().for_each(|place| drop(file.remove(*place)));
    }
    let mut words: Vec<OsString> = vec!["uraid".into(), "serve".into()];
    let mut members = Vec::new();
    for argument in serve.get_arguments().filter(|argument| is_setting(argument)) {
        let (id, key) = (argument.get_id().as_str(), key(argument));
        let said = file.remove(key).map(|value| (values(&value, argument), value));
        let values: Vec<OsString> = match (given.value_source(id), said) {
            (Some(ValueSource::CommandLine), _) if !argument.get_action().takes_values() => vec!["".into()],
            (Some(ValueSource::CommandLine), _) => {
                given.get_raw(id).into_iter().flatten().map(OsString::from).collect()
            }
            (_, Some((None, value))) => {
                return Err(format!("{key} can't be a TOML {}: {}", value.type_str(), expected(argument)));
            }
            (_, Some((Some(values), _))) => values,
            (_, None) => continue,
        };
        match key {
            MEMBERS => members = values,
            _ if argument.get_action().takes_values() => words.extend(values.iter().map(|value| option(key, value))),
            _ => words.extend(values.iter().map(|_| OsString::from(format!("--{key}")))),
        }
    }
    if let Some(key) = file.keys().next() {
        return Err(format!("there is no key '{key}': keys are 'members' and the long names of serve's options"));
    }
    if members.is_empty() {
        return Err("it names no members: members = [\"/dev/sda\", \"/dev/sdb\"]".into());
    }
    words.push("--".into());
    words.extend(members);
    Ok(words)
}

/// Whether a file may contain this argument.
fn is_setting(argument: &Arg) -> bool {
    !matches!(argument.get_id().as_str(), "config" | "help" | "version")
}

fn key(argument: &Arg) -> &str {
    argument.get_long().unwrap_or(MEMBERS)
}

/// A value in the form of an option: one element for each occurrence, empty for options without values. Returns `None`
/// if no option has such a value.
fn values(value: &Value, argument: &Arg) -> Option<Vec<OsString>> {
    let takes_values = argument.get_action().takes_values();
    match value {
        Value::Boolean(is_set) if !takes_values => Some(is_set.then(OsString::new).into_iter().collect()),
        _ if !takes_values => None,
        Value::String(text) => Some(vec![text.into()]),
        Value::Integer(_) if takes_paths(argument) => None,
        Value::Integer(number) => Some(vec![number.to_string().into()]),
        Value::Array(list) => {
            let single = list.iter().filter(|value| !value.is_array());
            let values: Option<Vec<_>> = single.map(|value| values(value, argument)).collect();
            values.map(|values| values.concat()).filter(|values| values.len() == list.len())
        }
        Value::Boolean(_) | Value::Float(_) | Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// Whether its values are files. Their names are strings, even if they consist of digits.
fn takes_paths(argument: &Arg) -> bool {
    argument.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

fn expected(argument: &Arg) -> &'static str {
    if takes_paths(argument) {
        "write a text in quotation marks, or a list of these"
    } else if argument.get_action().takes_values() {
        "write a text, a number, or a list of these"
    } else {
        "write true or false"
    }
}

/// An option and its value as one word, so that the value may begin with anything.
fn option(key: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(format!("--{key}="));
    word.push(value);
    word
}

/// An error message without the advice for interactive use.
fn said(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.split("\n\n").next().unwrap_or_default();
    text.strip_prefix("error: ").unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command line that results from the given words and a file with this `text`.
    fn line(words_given: &[&str], text: &str) -> Result<String, String> {
        let given = args::command().try_get_matches_from([&["uraid", "serve", "--config", "x"], words_given].concat());
        let given = given.unwrap();
        let (_, given) = given.subcommand().unwrap();
        words(text, given).map(|words| words.join(" ".as_ref()).into_string().unwrap())
    }

    #[test]
    fn a_file_becomes_a_command_line() {
        let text = "members = ['/dev/a', '-b']\ndegraded = true\nread-only = false\nspare = ['s', 't']\n\
                    connection-threads = 2\nwait-for-members = '5s'\ncache-size = '1G'";
        let expected = "uraid serve --degraded --spare=s --spare=t --wait-for-members=5s --cache-size=1G \
                        --connection-threads=2 -- /dev/a -b";
        assert_eq!(line(&[], text).unwrap(), expected);
        assert_eq!(
            line(&[], "members = 'a'\nexport = ''").unwrap(),
            "uraid serve --export= --wait-for-members=30s -- a"
        );
        assert_eq!(line(&[], "members = 'a'").unwrap(), "uraid serve --wait-for-members=30s -- a");
    }

    #[test]
    fn the_command_line_counts_more_than_the_file() {
        let text = "members = ['a']\nspare = ['s']\nwait-for-members = '5s'\nread-only = false\nforce = true";
        let words = ["--spare", "t", "--wait-for-members=1s", "--force", "b", "c"];
        assert_eq!(line(&words, text).unwrap(), "uraid serve --spare=t --wait-for-members=1s --force -- b c");
    }

    #[test]
    fn the_example_is_right_with_and_without_what_it_leaves_out() {
        let example = include_str!("../systemd/array.toml");
        let members = "-- /dev/disk/by-id/ata-A /dev/disk/by-id/ata-B /dev/disk/by-id/ata-C";
        assert_eq!(line(&[], example).unwrap(), format!("uraid serve --wait-for-members=30s {members}"));
        let setting = |line: &str| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).map(str::to_owned);
        let all: Vec<String> = example.lines().map(|line| setting(line).unwrap_or_else(|| line.into())).collect();
        let expected = "uraid serve --degraded --spare=/dev/disk/by-id/ata-D --wait-for-members=30s --scrub-every=30d \
                        --metrics=9187";
        assert_eq!(line(&[], &all.join("\n")).unwrap(), format!("{expected} {members}"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("members = ['a']\nsocket_path = 'x'", "'socket_path'"),
            ("members = ['a']\nconfig = 'x'", "'config'"),
            ("members = ['a']\nhelp = true", "'help'"),
            ("members = ['a']\ndegraded = 'yes'", "degraded can't be a TOML string: write true or false"),
            ("members = ['a']\nname = true", "name can't be a TOML boolean: write a text"),
            ("members = ['a']\nname = [['x']]", "name can't be a TOML array"),
            ("members = ['a']\n[cache]\nsize = 1", "cache can't be a TOML table"),
            ("degraded = true", "no members"),
            ("members = []", "no members"),
            ("members = ['a'", "line 1"),
        ] {
            let refused = line(&[], text).unwrap_err();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
