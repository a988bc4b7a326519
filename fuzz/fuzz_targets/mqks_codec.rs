//! Any bytes into the MQKS codec; the promises that are checked stand beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-wire/tests/mqks_check/mod.rs"]
mod mqks_check;

fuzz_target!(|input: &[u8]| mqks_check::check(input));
