//! The console blocks of documents, run as a reader would: each command in a shell, and what it prints compared.
//!
//! In a block that begins with ```` ```console ````, a line after `$ ` is a command, and the lines up to the next one
//! are what it prints. A line `...` stands for any lines, and `[..]` for any part of a line. The blocks of a document
//! share a shell and a directory, which is empty at first.

use std::fs;
use std::io::{Read as _, Write as _, pipe};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long a command may take to print what it is to print.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What the shell prints when a command is over, before its number: no command does.
const END: char = '\u{1}';

/// A command of a document, and what it prints.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// Where it is in the document, counted from 1.
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// Runs all console blocks of a document with the program `uraid`, and returns how many commands that were.
///
/// # Panics
/// When something else is printed than the document says.
pub fn run(document: &Path, uraid: &Path) -> usize {
    let text = fs::read_to_string(document).expect("the document can be read");
    let steps = steps(&text);
    let mut shell = Shell::new(uraid);
    for step in &steps {
        shell.run(step, document);
    }
    steps.len()
}

fn steps(text: &str) -> Vec<Step> {
    let (mut steps, mut is_inside) = (Vec::<Step>::new(), false);
    for (index, line) in text.lines().enumerate() {
        match line.trim() {
            "```console" => is_inside = true,
            "```" => is_inside = false,
            _ if !is_inside => {}
            _ => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    steps.push(Step { line: index + 1, command: command.to_owned(), expected: Vec::new() });
                }
                (None, Some(step)) => step.expected.push(line.to_owned()),
                (None, None) => panic!("line {}: a console block begins with a command", index + 1),
            },
        }
    }
    steps
}

struct Shell {
    child: Child,
    input: ChildStdin,
    /// What is printed, as it comes.
    output: Receiver<Vec<u8>>,
    /// What was printed and is not looked at yet.
    printed: String,
    _directory: tempfile::TempDir,
}

impl Shell {
    fn new(uraid: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (work, programs) = (directory.path().join("work"), directory.path().join("programs"));
        for place in [&work, &programs] {
            fs::create_dir(place).expect("a directory");
        }
        symlink(uraid, programs.join("uraid")).expect("a link");
        let mut search = programs.into_os_string();
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap_or_default());
        search.push(":/usr/sbin:/sbin");
        let (mut reader, writer) = pipe().expect("a pipe");
        let mut shell = Command::new("bash");
        shell.current_dir(&work).env("PATH", search).env("NO_COLOR", "1").env("LC_ALL", "C");
        shell.env("URAID_RUNTIME_DIR", directory.path().join("run")).process_group(0);
        shell.stdin(Stdio::piped()).stderr(writer.try_clone().expect("another descriptor")).stdout(writer);
        let mut child = shell.spawn().expect("bash starts");
        let input = child.stdin.take().expect("it has an input");
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, input, output, printed: String::new(), _directory: directory }
    }

    fn run(&mut self, step: &Step, document: &Path) {
        self.run_until(step, document, TIME_MAX);
    }

    fn run_until(&mut self, step: &Step, document: &Path, time_max: Duration) {
        // It does not read the commands that come after it.
        let end = format!("{END}{}\n", step.line);
        writeln!(self.input, "{{ {}\n}} </dev/null; printf '\\1%s\\n' {}", step.command, step.line)
            .expect("bash reads");
        let due = Instant::now() + time_max;
        loop {
            // What goes on beside it may have printed something since.
            if let Some((before, after)) = self.printed.split_once(&end) {
                let all = [before, after].concat();
                let is_whole = all.is_empty() || all.ends_with('\n');
                if is_whole && matches(&step.expected, &all.lines().collect::<Vec<_>>()) {
                    self.printed.clear();
                    return;
                }
            }
            match self.output.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.printed += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!(
                    "{}:{}: `{}` prints\n{}\nand it is to print\n{}\n",
                    document.display(),
                    step.line,
                    step.command,
                    self.printed,
                    step.expected.join("\n"),
                ),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::TERM));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether lines are as they are to be.
fn matches(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((any, rest)) if any == "..." => (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, others)| is_like(first, line) && matches(rest, others))
        }
    }
}

fn is_like(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split("[..]");
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_commands_and_what_they_print() {
        let text = "text\n```console\n$ one\nfirst\n$ two\n```\n$ no command\n```sh\n$ neither\n```\n";
        let step = |line, command: &str, expected: &[&str]| Step {
            line,
            command: command.into(),
            expected: expected.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(steps(text), [step(3, "one", &["first"]), step(5, "two", &[])]);
    }

    #[test]
    fn lines_are_compared_with_what_stands_for_any() {
        let is = |expected: &[&str], lines: &[&str]| {
            matches(&expected.iter().map(ToString::to_string).collect::<Vec<_>>(), lines)
        };
        assert!(is(&[], &[]) && !is(&[], &["a"]) && !is(&["a"], &[]));
        assert!(is(&["a", "...", "z"], &["a", "z"]) && is(&["a", "...", "z"], &["a", "b", "c", "z"]));
        assert!(!is(&["a", "...", "z"], &["a", "b"]) && is(&["..."], &[]));
        assert!(is(&["x [..] y"], &["x 12 y"]) && !is(&["x [..] y"], &["x 12 z"]) && is(&["[..]"], &[""]));
        assert!(is(&["a[..]b[..]c"], &["a1b2c"]) && !is(&["a[..]b[..]c"], &["a1c"]));
    }

    #[test]
    #[should_panic(expected = "it is to print")]
    fn what_prints_something_else_fails() {
        let directory = tempfile::tempdir().unwrap();
        let document = directory.path().join("document.md");
        fs::write(&document, "```console\n$ echo one\ntwo\n```\n").unwrap();
        let mut shell = Shell::new(Path::new("/bin/true"));
        let steps = steps(&fs::read_to_string(&document).unwrap());
        shell.run_until(&steps[0], &document, Duration::from_millis(500));
    }
}
