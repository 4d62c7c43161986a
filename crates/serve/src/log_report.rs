//! What status and metrics say of each of an array's log devices.

use uraid_io::disk::{OpName, log_place};
use uraid_io::format::superblock::LogIndex;

use crate::log_devices::{Known, numbered};
use crate::protocol::{Latency, LogDevice, LogDeviceState};
use crate::reactor::snapshot::Snapshot;

/// How they are, in the protocol's terms.
pub(crate) fn reports(known: &[Known], snapshot: &Snapshot) -> Vec<LogDevice> {
    let one = |(log, known): (LogIndex, &Known)| {
        let counters = snapshot.counters.log_device(log);
        let is_failed = snapshot.condition.troubles.failed_logs.contains(log);
        LogDevice {
            number: log.0,
            uuid: known.uuid,
            path: known.path(),
            state: if is_failed { LogDeviceState::Failed } else { LogDeviceState::Active },
            stalled: snapshot.condition.troubles.stalled_logs.contains(log),
            records: counters.log_records,
            written_bytes: counters.log_bytes,
            errors: counters.errors,
            write_latency: Latency::of(snapshot.latencies.of(log_place(log), OpName::Write)),
        }
    };
    numbered(known).map(one).collect()
}
