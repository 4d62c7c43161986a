//! Any changes to what an NBD server says: the client is not led astray, and says the same of it in any pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::{Input, nbd_client};

fuzz_target!(|bytes: &[u8]| nbd_client::check(&mut Input(bytes)));
