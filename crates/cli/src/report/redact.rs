//! Leaves out of a text whose it is: paths, host names, addresses, array names and UUIDs get names such as `path-1`,
//! the same thing the same name wherever it stands.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use uuid::Uuid;

/// What stands for what.
pub(super) struct Redactor {
    /// The longest first.
    known: Vec<(String, &'static str)>,
    /// By what they stand for.
    names: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Redactor {
    /// Leaves out `private` words, this machine's name, and everything that looks like a path, an address or a UUID.
    pub(super) fn new(private: Vec<String>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self::of(private, &host)
    }

    fn of(private: Vec<String>, host: &str) -> Self {
        let mut known: Vec<(String, &'static str)> =
            private.into_iter().map(|word| (kind_of(&word), word)).map(|(kind, word)| (word, kind)).collect();
        known.extend([host, host.split('.').next().unwrap_or_default()].map(|host| (host.to_owned(), "host")));
        known.retain(|(word, _)| !word.is_empty());
        known.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        Self { known, names: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// The text without them.
    pub(super) fn redact(mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = None;
        while let Some(first) = rest.chars().next() {
            let (taken, kind) = self.private_at(rest, before).unwrap_or((0, ""));
            let taken = if taken > 0 {
                out += &self.name(&rest[..taken], kind);
                taken
            } else {
                // A word is left in one piece, so that nothing is found in its middle.
                let word = rest.find(|character: char| !is_of_word(character)).unwrap_or(rest.len());
                let taken = word.max(first.len_utf8());
                out += &rest[..taken];
                taken
            };
            before = rest[..taken].chars().next_back();
            rest = &rest[taken..];
        }
        out
    }

    /// How long the private thing is that a text begins with, and what it is.
    fn private_at(&self, text: &str, before: Option<char>) -> Option<(usize, &'static str)> {
        if before.is_some_and(is_of_word) {
            return None;
        }
        let ends = |length: usize| !text[length..].chars().next().is_some_and(is_of_word);
        let known = self.known.iter().find(|(word, _)| text.starts_with(word.as_str()) && ends(word.len()));
        if let Some((word, kind)) = known {
            return Some((word.len(), kind));
        }
        if text.starts_with('/') {
            let length = text.find(is_end_of_path).unwrap_or(text.len());
            let path = text[..length].trim_end_matches(['.', ':']);
            let has_name = path.contains(|character: char| character.is_alphanumeric());
            return has_name.then(|| (path.len(), kind_of(path)));
        }
        let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | ':');
        let length = text.find(|character| !is_part(character)).unwrap_or(text.len());
        let token = text[..length].trim_end_matches(['.', ':', '-']);
        if token.len() == 36 && Uuid::try_parse(token).is_ok() {
            return Some((token.len(), "uuid"));
        }
        let address = token.parse().ok().or_else(|| token.parse().ok().map(|socket: SocketAddr| socket.ip()));
        let is_private = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified();
        let address = address.filter(is_private)?;
        // The port stays.
        let length = if address.is_ipv4() { token.find(':').unwrap_or(token.len()) } else { token.len() };
        Some((length, "address"))
    }

    /// What stands for something.
    fn name(&mut self, private: &str, kind: &'static str) -> String {
        if let Some(name) = self.names.get(private) {
            return name.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let name = format!("{kind}-{count}");
        self.names.insert(private.to_owned(), name.clone());
        name
    }
}

fn kind_of(word: &str) -> &'static str {
    match word {
        device if device.starts_with("/dev/") => "device",
        path if path.starts_with('/') => "path",
        _ => "name",
    }
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn is_end_of_path(character: char) -> bool {
    character.is_whitespace() || "\"'?&,;()<>|[]{}".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_thing_has_the_same_name() {
        let private = ["/srv/my disks/d0", "vault"].map(str::to_owned).to_vec();
        let text = "storage1 vault: /srv/my disks/d0, /dev/sda and /srv/other.\n\
            6e66a4ef-1c03-4908-94a4-6fbd22d024ce /dev/sda storage1.lan\n\
            nbd+unix:///vault?socket=/run/vault.sock 192.0.2.7:10809 2001:db8::1 127.0.0.1\n\
            vaulted 1/2 MB/s 14:09:34 6e66a4ef {\"name\": \"vault\", \"path\": \"/srv/my disks/d0\"}\n";
        let wanted = "host-1 name-1: path-1, device-1 and path-2.\n\
            uuid-1 device-1 host-2\n\
            nbd+unix:path-3?socket=path-4 address-1:10809 address-2 127.0.0.1\n\
            vaulted 1/2 MB/s 14:09:34 6e66a4ef {\"name\": \"name-1\", \"path\": \"path-1\"}\n";
        assert_eq!(Redactor::of(private, "storage1.lan").redact(text), wanted);
    }

    #[test]
    fn nothing_private_is_nothing_to_do() {
        for text in ["", "whole: survives 1 more failure\n", "größe / 2 \u{1F4BE}\n"] {
            assert_eq!(Redactor::of(vec![String::new()], "").redact(text), text);
        }
    }
}
