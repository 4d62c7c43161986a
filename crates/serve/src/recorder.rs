//! Records clients' requests while somebody asks for it: when, what and where, not the content.
//!
//! All threads share one recorder. Its memory is bounded: requests that nobody takes in time are counted, not kept.
//! While nothing is recorded, a request costs one look at a flag.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use uraid_nbd::Command;

use crate::protocol::Recorded;

/// Maximum number of requests that wait to be taken: 16 MiB.
const ENTRIES_MAX: usize = 1 << 19;

/// Maximum number of requests in an answer, whose line has to fit its limit.
const TAKEN_MAX: usize = 16 << 10;

/// A recording that nobody takes for so long ends.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    is_running: AtomicBool,
    recording: Mutex<Recording>,
}

#[derive(Debug, Default)]
struct Recording {
    /// Its number, from 1.
    number: u64,
    began: Option<Instant>,
    taken: Option<Instant>,
    entries: Vec<Entry>,
    lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_us: u64,
    offset_bytes: u64,
    length_bytes: u32,
    is_write: bool,
}

impl Recorder {
    /// Notes a command, if somebody records. Only reads and writes count.
    pub(crate) fn note<B>(&self, command: &Command<B>) {
        if self.is_running.load(Ordering::Relaxed) {
            self.keep(command);
        }
    }

    #[cold]
    fn keep<B>(&self, command: &Command<B>) {
        let (span, is_write) = match command {
            Command::Read { span, .. } => (span, false),
            Command::Write { span, .. } => (span, true),
            _ => return,
        };
        let mut recording = self.recording();
        let Some(began) = recording.began else { return };
        if recording.entries.len() < ENTRIES_MAX {
            let at_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let (offset_bytes, length_bytes) = (span.offset_bytes, span.data_bytes());
            recording.entries.push(Entry { at_us, offset_bytes, length_bytes, is_write });
        } else {
            recording.lost += 1;
            if recording.taken.is_some_and(|taken| taken.elapsed() > FORGOTTEN_AFTER) {
                self.end(&mut recording);
            }
        }
    }

    /// Records from now on, and returns the recording's number. An earlier recording ends.
    pub(crate) fn start(&self) -> u64 {
        let mut recording = self.recording();
        let now = Some(Instant::now());
        *recording = Recording { number: recording.number + 1, began: now, taken: now, ..Recording::default() };
        self.is_running.store(true, Ordering::Relaxed);
        recording.number
    }

    /// Takes what was recorded since the last time, the first [`TAKEN_MAX`] of it. With `ends`, nothing more is
    /// recorded; what is left can still be taken.
    pub(crate) fn take(&self, number: u64, ends: bool) -> Result<Recorded> {
        let mut recording = self.recording();
        if recording.number != number || recording.began.is_none() {
            bail!("this recording has ended: nobody took it for a minute, or another one has begun");
        }
        recording.taken = Some(Instant::now());
        if ends {
            self.is_running.store(false, Ordering::Relaxed);
        }
        let count = recording.entries.len().min(TAKEN_MAX);
        let mut trace = String::with_capacity(count * 32);
        for entry in recording.entries.drain(..count) {
            let Entry { at_us, offset_bytes, length_bytes, is_write } = entry;
            let op = if is_write { 'W' } else { 'R' };
            let (seconds, micros) = (at_us / 1_000_000, at_us % 1_000_000);
            writeln!(trace, "{seconds}.{micros:06},{op},{offset_bytes},{length_bytes}").expect("a string takes it");
        }
        let has_more = !recording.entries.is_empty();
        let lost = recording.lost;
        if ends && !has_more {
            self.end(&mut recording);
        }
        Ok(Recorded { trace, lost, has_more })
    }

    /// Ends a recording and frees its memory.
    fn end(&self, recording: &mut Recording) {
        self.is_running.store(false, Ordering::Relaxed);
        *recording = Recording { number: recording.number, ..Recording::default() };
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().expect("a panic ends the process")
    }
}

#[cfg(test)]
mod tests {
    use uraid_nbd::Span;

    use super::*;

    fn read(offset_bytes: u64) -> Command<()> {
        Command::Read { span: Span { offset_bytes, length_bytes: 4096 }, buffer: () }
    }

    fn write(offset_bytes: u64) -> Command<()> {
        Command::Write { span: Span { offset_bytes, length_bytes: 512 }, buffer: (), fua: false }
    }

    /// What is recorded, without times.
    fn taken(recorder: &Recorder, number: u64, ends: bool) -> (Vec<String>, bool) {
        let Recorded { trace, has_more, .. } = recorder.take(number, ends).expect("it is going on");
        (trace.lines().map(|line| line.split_once(',').expect("it has a time").1.to_owned()).collect(), has_more)
    }

    #[test]
    fn reads_and_writes_of_a_recording_are_taken_once() {
        let recorder = Recorder::default();
        recorder.note(&read(0));
        let number = recorder.start();
        recorder.note(&read(8192));
        recorder.note(&Command::<()>::Flush);
        recorder.note(&write(512));
        assert_eq!(taken(&recorder, number, false), (vec!["R,8192,4096".into(), "W,512,512".into()], false));
        recorder.note(&read(0));
        assert_eq!(taken(&recorder, number, true), (vec!["R,0,4096".into()], false));
        recorder.note(&read(0));
        assert!(recorder.take(number, true).is_err(), "it has ended");
        let (first, second) = (recorder.start(), recorder.start());
        assert!(recorder.take(first, false).is_err() && recorder.take(second, false).is_ok());
    }

    #[test]
    fn what_nobody_takes_is_counted() {
        let recorder = Recorder::default();
        let number = recorder.start();
        (0..ENTRIES_MAX + 3).for_each(|index| recorder.note(&read(index as u64 * 4096)));
        let mut count = 0;
        loop {
            let Recorded { trace, lost, has_more } = recorder.take(number, true).expect("it is there");
            assert_eq!(lost, 3);
            assert!(trace.len() < 900 << 10, "a line of an answer has a limit: {}", trace.len());
            count += trace.lines().count();
            if !has_more {
                break;
            }
        }
        assert_eq!(count, ENTRIES_MAX);
    }
}
