//! Any script of bytes, events and time into a MicroMessage2 session; the promises that are checked stand beside the
//! crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-session/tests/micromessage_session_check/mod.rs"]
mod micromessage_session_check;

fuzz_target!(|input: &[u8]| micromessage_session_check::check(input));
