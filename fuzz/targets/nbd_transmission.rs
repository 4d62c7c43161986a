//! Any changes to the requests of an NBD client: what may be executed is, as it was asked for, and nothing else. Each
//! request has one reply in its form.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::{Input, nbd};

fuzz_target!(|bytes: &[u8]| {
    nbd::check_sound_sessions_once();
    nbd::check(&nbd::transmission(&mut Input(bytes)));
});
