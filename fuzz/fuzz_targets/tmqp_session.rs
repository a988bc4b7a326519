//! Any script of bytes, events and time into a TMQP session; the promises that are checked stand beside the crate's
//! tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-session/tests/tmqp_session_check/mod.rs"]
mod tmqp_session_check;

fuzz_target!(|input: &[u8]| tmqp_session_check::check(input));
