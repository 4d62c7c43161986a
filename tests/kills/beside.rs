//! fio beside the load, on the part of the export that the journal leaves to it: it reads back what it wrote until the
//! server is gone.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::ChildStdout;

use crate::process::Process;
use crate::run::{CLIENT_TIME_MAX, client_command};

/// fio, which has begun.
pub(super) struct Beside {
    running: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Beside {
    /// Starts it on all that lies behind `offset` bytes, and waits until it works.
    ///
    /// # Panics
    /// When it ends before.
    pub(super) fn start(uri: &str, offset: usize, seed: u32) -> Self {
        let mut fio = client_command("fio");
        fio.args([
            "--name=beside",
            "--ioengine=nbd",
            "--thread",
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--iodepth=16",
        ]);
        fio.args(["--fsync=64", "--verify=crc32c", "--verify_backlog=32", "--verify_fatal=1", "--verify_state_save=0"]);
        fio.args(["--time_based", "--runtime=60", "--output-format=terse", "--status-interval=100ms"]);
        fio.arg(format!("--uri={uri}")).arg(format!("--offset={offset}")).arg(format!("--randseed={seed}"));
        let mut running = Process::start_with_open_stdout(fio);
        let mut lines = BufReader::new(running.take_stdout()).lines();
        // The first lines tell of its connection, then one comes for each interval.
        let works = lines.by_ref().map_while(Result::ok).any(|line| line.contains(";beside;"));
        if !works {
            let output = running.finish(CLIENT_TIME_MAX);
            panic!("`{}` ended with {:?} before the server was killed: {}", output.line, output.code, output.stderr);
        }
        Self { running, lines }
    }

    /// Waits for its end, which the server's brings about.
    ///
    /// # Panics
    /// When it read back what it had not written.
    pub(super) fn end(self) {
        self.lines.map_while(Result::ok).for_each(drop);
        let output = self.running.finish(CLIENT_TIME_MAX);
        assert!(!output.stderr.contains("verify"), "fio read what it had not written: {}", output.stderr);
    }
}
