//! Any bytes into the ZMTP codec; the promises that are checked stand beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-wire/tests/zmtp_check/mod.rs"]
mod zmtp_check;

fuzz_target!(|input: &[u8]| zmtp_check::check(input));
