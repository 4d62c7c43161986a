//! A configuration file with several arrays: tables `[array.NAME]`, and above them what the server itself needs, and
//! what holds for all arrays that do not say otherwise.
//!
//! | keys | above the tables | in a table |
//! |---|---|---|
//! | [`OF_ARRAYS`] | refused | of this array |
//! | [`PLACES`] | where arrays without sockets of their own are served, by their exports' names | own sockets |
//! | [`OF_SOCKETS`] | of these sockets, and default for own ones | of own sockets |
//! | [`OF_SERVER`] | of the server | refused |
//! | [`NOWHERE`] | refused | refused |
//! | all others | default | of this array |

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use anyhow::Result;
use toml::{Table, Value};
use uraid_io::member::absolute;

use super::{ARRAYS, MEMBERS, PLACES, Setting, Source, arguments, is_given, key, parse, serve_command, settings};
use crate::misuse::Misuse;
use crate::serve::args::ServeArgs;

/// What describes one array, and makes no sense for all.
const OF_ARRAYS: [&str; 9] = [MEMBERS, "spare", "domain", "export", "control", "name", "uuid", "accept-stale", "force"];

/// What is about sockets, beside where they are.
const OF_SOCKETS: [&str; 6] =
    ["tls", "tls-certificates", "tls-verify-peer", "insecure", "allow-uid", "handshake-deadline"];

/// What a process has once.
const OF_SERVER: [&str; 5] = ["metrics", "exit-with-parent", "user", "sandbox", "allow-path"];

/// What there is for one array alone.
const NOWHERE: [&str; 2] = ["run", "takeover"];

/// Longest name of an array.
const NAME_BYTES_MAX: usize = 64;

/// A file's content, checked.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The server's own settings.
    pub(crate) server: Settings,
    /// The arrays, in the order of their names.
    pub(crate) arrays: Vec<ArrayTable>,
}

/// Settings, and the arguments that they mean.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) settings: Vec<Setting>,
    /// Of a server: only what is not of one array counts.
    pub(crate) args: Box<ServeArgs>,
}

/// One array.
#[derive(Debug)]
pub(crate) struct ArrayTable {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    /// Whether it is served on the server's sockets.
    pub(crate) is_shared: bool,
}

impl Source {
    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If it can't be read, or something in it is wrong: the file and the key are named.
    pub(crate) fn read(&self) -> Result<Tables> {
        let file = parse(&self.path)?;
        let tables = self.tables(file).and_then(|tables| tables.check().map(|()| tables));
        Ok(tables.map_err(|text| Misuse(format!("{}: {}", self.path.display(), text.trim_end())))?)
    }

    fn tables(&self, mut file: Table) -> Result<Tables, String> {
        let arrays = match file.remove(ARRAYS) {
            Some(Value::Table(arrays)) => arrays,
            Some(_) => return Err("array is no key: write [array.NAME] above each array's keys".into()),
            None => Table::new(),
        };
        if arrays.is_empty() {
            return Err("it has no array: add a table [array.NAME] with its members".into());
        }
        self.check_command_line()?;
        for key in file.keys().map(String::as_str) {
            if OF_ARRAYS.contains(&key) {
                return Err(format!(
                    "{key} stands above the tables, but is of one array: move it into its [array.NAME]"
                ));
            }
        }
        refuse(&file, &NOWHERE, "is for a server of one array: leave it out")?;
        let mut of_server = file.clone();
        // The arguments need some; nobody looks at them.
        of_server.insert(MEMBERS.into(), Value::String("-".into()));
        let server = Settings::new(settings(of_server, &self.given, &[])?)?;
        let has_places = server.has(&PLACES) || env::var_os("LISTEN_FDS").is_some();
        let arrays = arrays.into_iter().map(|(name, table)| {
            let named = |text: String| format!("array.{name}: {text}");
            self.array(&file, &name, table, has_places).map_err(named)
        });
        Ok(Tables { server, arrays: arrays.collect::<Result<_, _>>()? })
    }

    /// Refuses options of the command line that are not for all arrays.
    fn check_command_line(&self) -> Result<(), String> {
        let serve = serve_command();
        let given = serve.get_arguments().filter(|argument| is_given(argument, &self.given)).map(key);
        let mut wrong = given.filter(|key| OF_ARRAYS.contains(key) || NOWHERE.contains(key));
        wrong.next().map_or(Ok(()), |key| {
            let option = if key == MEMBERS { "MEMBER".to_owned() } else { format!("--{key}") };
            Err(format!("{option} is for one array, and the file has several: leave it out of the command line"))
        })
    }

    fn array(&self, file: &Table, name: &str, table: Value, has_places: bool) -> Result<ArrayTable, String> {
        check_name(name)?;
        let Value::Table(mut table) = table else {
            return Err(format!("it is no table: write its keys below [array.{name}]"));
        };
        refuse(&table, &OF_SERVER, "is of the whole server: move it above the tables")?;
        refuse(&table, &NOWHERE, "is for a server of one array: leave it out")?;
        let is_shared = !PLACES.iter().any(|place| table.contains_key(*place));
        if is_shared {
            if !has_places {
                return Err("it has no socket: give it a key socket, or write one above the tables for all".into());
            }
            refuse(
                &table,
                &OF_SOCKETS,
                "is about a socket: give the array one of its own, or move it above the tables",
            )?;
        }
        let has_socket = table.contains_key("socket");
        let has_no_tls = table.get("tls").and_then(Value::as_str) == Some("off");
        for (key, value) in file {
            let is_of_server = OF_SERVER.contains(&key.as_str()) || PLACES.contains(&key.as_str());
            let is_of_other_sockets = is_shared && OF_SOCKETS.contains(&key.as_str())
                || !has_socket && key == "allow-uid"
                || has_no_tls && key.starts_with("tls-");
            if !is_of_server && !is_of_other_sockets {
                table.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        table.entry("export").or_insert_with(|| Value::String(name.to_owned()));
        let mut ignored = [&PLACES[..], &OF_SERVER].concat();
        if is_shared {
            ignored.extend(OF_SOCKETS);
        }
        let settings = Settings::new(settings(table, &self.given, &ignored)?)?;
        Ok(ArrayTable { name: name.to_owned(), settings, is_shared })
    }
}

impl Settings {
    fn new(settings: Vec<Setting>) -> Result<Self, String> {
        Ok(Self { args: arguments(&settings)?, settings })
    }

    fn has(&self, keys: &[&str]) -> bool {
        self.settings.iter().any(|setting| keys.contains(&setting.key.as_str()))
    }

    /// The settings of the server that it keeps as long as it runs.
    pub(crate) fn lasting(&self) -> impl Iterator<Item = &Setting> {
        let is_lasting = |key: &str| {
            [&PLACES[..], &OF_SOCKETS, &OF_SERVER].concat().contains(&key) || key.starts_with("max-connections")
        };
        self.settings.iter().filter(move |setting| is_lasting(&setting.key))
    }
}

impl ArrayTable {
    /// The name of its export.
    pub(crate) fn export(&self) -> &str {
        self.settings.args.endpoint.export.as_deref().unwrap_or(&self.name)
    }
}

impl Tables {
    /// Refuses what two arrays can't both have.
    fn check(&self) -> Result<(), String> {
        let mut exports = Once::new("two arrays on the server's sockets have the export");
        for array in self.arrays.iter().filter(|array| array.is_shared) {
            exports.note(&array.name, array.export(), "give one of them another key export")?;
        }
        let mut sockets = Once::new("two of them have the socket");
        let places = [("the server", &self.server.args)].into_iter();
        let places = places.chain(self.arrays.iter().map(|array| (array.name.as_str(), &array.settings.args)));
        for (name, args) in places {
            let endpoint = &args.endpoint;
            let paths = endpoint.socket.iter().chain(&args.watch.control);
            // The system chooses a port 0 anew each time.
            let addresses = endpoint.listen.iter().map(ToString::to_string).filter(|address| !address.ends_with(":0"));
            for place in paths.map(|path| shown(path)).chain(addresses) {
                sockets.note(name, &place, "give one of them another")?;
            }
        }
        let mut members = Once::new("two arrays have the member");
        for array in &self.arrays {
            let ServeArgs { members: own, wanted, .. } = &*array.settings.args;
            // Any paths may be there.
            if wanted.uuid.is_none() && wanted.name.is_none() {
                for member in own {
                    members.note(&array.name, &shown(member), "name it in one table")?;
                }
            }
        }
        for array in &self.arrays {
            for spare in &array.settings.args.spares {
                if let Some(other) = members.of.get(&shown(spare)) {
                    return Err(format!("array.{}: the spare {} is a member of {other}", array.name, spare.display()));
                }
            }
        }
        Ok(())
    }
}

/// What only one may have.
struct Once {
    what: &'static str,
    /// Who has it.
    of: BTreeMap<String, String>,
}

impl Once {
    fn new(what: &'static str) -> Self {
        Self { what, of: BTreeMap::new() }
    }

    fn note(&mut self, name: &str, thing: &str, advice: &str) -> Result<(), String> {
        match self.of.insert(thing.to_owned(), name.to_owned()) {
            None => Ok(()),
            Some(other) if other == name => Err(format!("array.{name}: {thing} is there twice")),
            Some(other) => Err(format!("{} {thing}: {other} and {name}; {advice}", self.what)),
        }
    }
}

/// A path as it is told from others, without asking the file system, which may hang.
fn shown(path: &Path) -> String {
    absolute(path).unwrap_or_else(|_| PathBuf::from(path)).display().to_string()
}

/// Refuses keys that have no meaning where they are.
fn refuse(table: &Table, keys: &[&str], why: &str) -> Result<(), String> {
    match keys.iter().find(|key| table.contains_key(**key)) {
        Some(key) => Err(format!("{key} {why}")),
        None => Ok(()),
    }
}

/// An array's name becomes the name of a file.
fn check_name(name: &str) -> Result<(), String> {
    let is_fine = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let is_name =
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.') && name.chars().all(is_fine);
    if is_name {
        return Ok(());
    }
    Err(format!(
        "a table's name consists of up to {NAME_BYTES_MAX} letters, digits and -_. and begins with no dot; clients may \
         know the array by any other, with the key export"
    ))
}

#[cfg(test)]
pub(crate) mod tests;
