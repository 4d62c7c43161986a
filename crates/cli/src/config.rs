//! `uraid serve --config`: members and options of `uraid serve` in a TOML file, under their long names. A file may have
//! several arrays, as [tables].
//!
//! The command line takes precedence over the file. The file is converted into the words of a command line, so that
//! options have the same meaning and the same checks in both.

pub(crate) mod tables;

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, FromArgMatches as _};
use toml::{Table, Value};

use crate::args::{self, Cli, Command};
use crate::config_file;
use crate::misuse::Misuse;
use crate::serve::args::ServeArgs;

/// The default of `wait-for-members` in a file. The file serves for starting the machine, when disks appear late.
const WAIT: (&str, &str) = ("wait-for-members", "30s");

/// If the command line sets any of these, it replaces all of them in the file: they all say where to listen.
const PLACES: [&str; 2] = ["socket", "listen"];

/// The key of the members.
const MEMBERS: &str = "members";

/// The tables of arrays.
const ARRAYS: &str = "array";

/// What a command line means.
pub(crate) enum Expanded {
    /// A command, extended with the settings of the file that it names if there is one.
    Command(Cli),
    /// To serve the arrays of a file.
    Several(Source),
}

/// A file with several arrays, and the command line, whose options count more.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    given: ArgMatches,
}

/// An argument of `uraid serve`: its key in a file, and its values, one for each occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) values: Vec<OsString>,
    takes_values: bool,
}

/// The command line together with the file that it names.
pub(crate) fn expand(cli: Cli, given: &ArgMatches) -> Result<Expanded> {
    let Command::Serve(serve) = &cli.command else { return Ok(Expanded::Command(cli)) };
    let (Some(path), Some(("serve", given))) = (&serve.config, given.subcommand()) else {
        return Ok(Expanded::Command(cli));
    };
    let file = parse(path)?;
    if file.contains_key(ARRAYS) {
        return Ok(Expanded::Several(Source { path: absolute(path)?, given: given.clone() }));
    }
    let fault = |text: String| Misuse(format!("{}: {}", path.display(), text.trim_end()));
    let settings = settings(file, given, &[]).map_err(fault)?;
    let mut serve = arguments(&settings).map_err(fault)?;
    serve.config = Some(absolute(path)?);
    Ok(Expanded::Command(Cli { command: Command::Serve(serve), ..cli }))
}

/// What a file has.
fn parse(path: &Path) -> Result<Table> {
    let text = config_file::read(path).with_context(|| format!("can't read {}", path.display()))?;
    let parsed = text.parse().map_err(|error: toml::de::Error| error.to_string());
    Ok(parsed.map_err(|error| Misuse(format!("{}: {}", path.display(), error.trim_end())))?)
}

/// The settings of a file and of a command line, in the order of the arguments. What the command line says of the keys
/// in `ignored` does not count.
fn settings(mut file: Table, given: &ArgMatches, ignored: &[&str]) -> Result<Vec<Setting>, String> {
    if !file.contains_key(WAIT.0) {
        file.insert(WAIT.0.to_owned(), Value::String(WAIT.1.to_owned()));
    }
    let serve = serve_command();
    let is_given = |argument: &Arg| is_given(argument, given) && !ignored.contains(&key(argument));
    if serve.get_arguments().any(|argument| PLACES.contains(&key(argument)) && is_given(argument)) {
        PLACES.iter().for_each(|place| drop(file.remove(*place)));
    }
    let mut settings = Vec::new();
    for argument in serve.get_arguments().filter(|argument| is_setting(argument)) {
        let (key, takes_values) = (key(argument), argument.get_action().takes_values());
        let said = file.remove(key).map(|value| (values(&value, argument), value));
        let values: Vec<OsString> = match said {
            _ if is_given(argument) && !takes_values => vec!["".into()],
            _ if is_given(argument) => {
                given.get_raw(argument.get_id().as_str()).into_iter().flatten().map(OsString::from).collect()
            }
            Some((None, value)) => {
                return Err(format!("{key} can't be a TOML {}: {}", value.type_str(), expected(argument)));
            }
            Some((Some(values), _)) => values,
            None => continue,
        };
        settings.push(Setting { key: key.to_owned(), values, takes_values });
    }
    if let Some(key) = file.keys().next() {
        return Err(format!("there is no key '{key}': keys are 'members' and the long names of serve's options"));
    }
    if settings.iter().all(|setting| setting.key != MEMBERS || setting.values.is_empty()) {
        return Err("it names no members: members = [\"/dev/sda\", \"/dev/sdb\"]".into());
    }
    Ok(settings)
}

/// The arguments that the settings mean.
fn arguments(settings: &[Setting]) -> Result<Box<ServeArgs>, String> {
    let matches = args::command().try_get_matches_from(words(settings)).map_err(|error| said(&error))?;
    match Cli::from_arg_matches(&matches).map_err(|error| said(&error))?.command {
        Command::Serve(serve) => Ok(serve),
        _ => unreachable!("the words are of that command"),
    }
}

/// The command line that says the same as settings.
fn words(settings: &[Setting]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["uraid".into(), "serve".into()];
    let (members, options): (Vec<&Setting>, Vec<&Setting>) =
        settings.iter().partition(|setting| setting.key == MEMBERS);
    for Setting { key, values, takes_values } in options {
        let word = |value: &OsString| if *takes_values { option(key, value) } else { format!("--{key}").into() };
        words.extend(values.iter().map(word));
    }
    words.push("--".into());
    words.extend(members.into_iter().flat_map(|members| members.values.clone()));
    words
}

/// `uraid serve` as the command line has it.
fn serve_command() -> clap::Command {
    let mut command = args::command();
    command.build();
    command.find_subcommand("serve").expect("there is such a command").clone()
}

fn is_given(argument: &Arg, given: &ArgMatches) -> bool {
    is_setting(argument) && given.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
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
        let file = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        settings(file, given, &[]).map(|settings| words(&settings).join(" ".as_ref()).into_string().unwrap())
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
