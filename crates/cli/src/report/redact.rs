//! Redacts a text: replaces paths, host names, addresses, array names and UUIDs with names such as `path-1`. The same
//! thing gets the same name everywhere.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use uraid_serve::text::visible;
use uuid::Uuid;

/// The private words, and the names that replace them.
pub(super) struct Redactor {
    /// Known private words in all their spellings, longest first.
    known: Vec<Known>,
    /// By the word that each name replaces.
    names: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
}

/// A private word.
struct Known {
    /// Its spelling in a text.
    written: String,
    /// The word itself.
    word: String,
    kind: &'static str,
}

/// Shorter names, and numbers, occur everywhere, so they are redacted only where the text quotes them.
const LEN_MIN: usize = 3;

impl Redactor {
    /// Redacts `private` words, this machine's name, and everything that looks like a path, an address or a UUID.
    pub(super) fn new(private: Vec<String>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self::of(private, &host)
    }

    fn of(private: Vec<String>, host: &str) -> Self {
        let hosts = [host, host.split('.').next().unwrap_or_default()].map(|host| (host.to_owned(), "host"));
        let words = private.into_iter().map(|word| (kind_of(&word), word)).map(|(kind, word)| (word, kind));
        let mut known: Vec<Known> = words.chain(hosts).flat_map(|(word, kind)| spellings(&word, kind)).collect();
        known.sort_by_key(|known| std::cmp::Reverse(known.written.len()));
        Self { known, names: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// The redacted text.
    pub(super) fn redact(mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = None;
        while let Some(first) = rest.chars().next() {
            let taken = if let Some((taken, word, kind)) = self.private_at(rest, before).filter(|found| found.0 > 0) {
                out += &self.name(&word, kind);
                taken
            } else {
                // A word is copied in one piece, so that nothing is found in its middle.
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

    /// The length of the private word at the start of the text, the word itself, and its kind.
    fn private_at(&self, text: &str, before: Option<char>) -> Option<(usize, String, &'static str)> {
        let own = |length: usize, kind| (length, text[..length].to_owned(), kind);
        if before.is_some_and(is_of_word) {
            return None;
        }
        let ends = |length: usize| !text[length..].chars().next().is_some_and(is_of_word);
        let is_quoted = |length: usize| before.zip(text[length..].chars().next()).is_some_and(is_pair_of_quotes);
        let is_telling = |known: &&Known| known.is_telling() || is_quoted(known.written.len());
        let is_here = |known: &&Known| text.starts_with(known.written.as_str()) && ends(known.written.len());
        if let Some(known) = self.known.iter().filter(is_here).find(is_telling) {
            return Some((known.written.len(), known.word.clone(), known.kind));
        }
        if text.starts_with('/') {
            // Quotes may hold a path with spaces.
            let quoted = before.filter(|quote| "\"'".contains(*quote)).and_then(|quote| text.find(quote));
            let quoted = quoted.filter(|&length| !text[..length].contains('\n'));
            let length = quoted.or_else(|| text.find(is_end_of_path)).unwrap_or(text.len());
            let path = text[..length].trim_end_matches(['.', ':']);
            let has_name = path.contains(|character: char| character.is_alphanumeric());
            return has_name.then(|| own(path.len(), kind_of(path)));
        }
        let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | ':');
        let length = text.find(|character| !is_part(character)).unwrap_or(text.len());
        let token = text[..length].trim_end_matches(['.', ':', '-']);
        if token.len() == 36 && Uuid::try_parse(token).is_ok() {
            return Some(own(token.len(), "uuid"));
        }
        if let Some(host) = host_of(token) {
            return Some(own(host.len(), "host"));
        }
        let address = token.parse().ok().or_else(|| token.parse().ok().map(|socket: SocketAddr| socket.ip()));
        let is_private = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified();
        let address = address.filter(is_private)?;
        // The port stays.
        let length = if address.is_ipv4() { token.find(':').unwrap_or(token.len()) } else { token.len() };
        Some(own(length, "address"))
    }

    /// The name that replaces a word.
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

impl Known {
    fn is_telling(&self) -> bool {
        let is_number = self.written.bytes().all(|byte| byte.is_ascii_digit());
        !is_number && (self.kind != "name" || self.written.chars().count() >= LEN_MIN)
    }
}

/// The spellings of a private word in texts, JSON and logs.
fn spellings(word: &str, kind: &'static str) -> Vec<Known> {
    let json = serde_json::Value::from(word).to_string();
    let debug = format!("{word:?}");
    let inner = |quoted: &str| quoted[1..quoted.len() - 1].to_owned();
    let mut all = vec![word.to_owned(), inner(&json), inner(&debug), word.escape_debug().to_string(), visible(word)];
    // A file's name alone stands for its path, too.
    all.extend(word.rsplit_once('/').filter(|_| kind != "name").map(|(_, name)| name.to_owned()));
    all.retain(|written| !written.is_empty());
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|written| Known { written, word: word.to_owned(), kind }).collect()
}

/// The host name before a port, as in `storage.lan:10809`. It has a dot and ends in a letter.
fn host_of(token: &str) -> Option<&str> {
    let (host, port) = token.split_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = host.contains('.') && host.ends_with(|character: char| character.is_ascii_alphabetic());
    (is_port && is_host).then_some(host)
}

fn is_pair_of_quotes((before, after): (char, char)) -> bool {
    before == after && "\"'".contains(before)
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
    fn however_a_name_is_written_it_is_left_out() {
        let private = ["/srv/my sécret dir/it's \"b\"", "/srv/d0", "a/b \"q\" \\ü", "0"].map(str::to_owned).to_vec();
        let text = "{\"path\": \"/srv/my sécret dir/it's \\\"b\\\"\", \"name\": \"a/b \\\"q\\\" \\\\ü\"}\n\
            left out: d0: gone; storage.lan:10809; \"/srv/geheim ordner/x y.img\"\n\
            uraid 0.1.0 \"clients\": 0, \"name\": \"0\" at 10:25\n";
        let wanted = "{\"path\": \"path-1\", \"name\": \"name-1\"}\n\
            left out: path-2: gone; host-1:10809; \"path-3\"\n\
            uraid 0.1.0 \"clients\": 0, \"name\": \"name-2\" at 10:25\n";
        assert_eq!(Redactor::of(private, "here.lan").redact(text), wanted);
    }

    #[test]
    fn nothing_private_is_nothing_to_do() {
        for text in ["", "whole: survives 1 more failure\n", "größe / 2 \u{1F4BE}\n"] {
            assert_eq!(Redactor::of(vec![String::new()], "").redact(text), text);
        }
    }
}
