//! Any changes to the handshake of an NBD client: the server answers each option once and in its form, or ends the
//! connection.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::{Input, nbd};

fuzz_target!(|bytes: &[u8]| {
    nbd::check_sound_sessions_once();
    nbd::check(&nbd::handshake(&mut Input(bytes)));
});
