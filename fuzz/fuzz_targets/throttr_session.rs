//! Any script of bytes, events and time into a Throttr session; the promises that are checked stand beside the crate's
//! tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-session/tests/throttr_session_check/mod.rs"]
mod throttr_session_check;

fuzz_target!(|input: &[u8]| throttr_session_check::check(input));
