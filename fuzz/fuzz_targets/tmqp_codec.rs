//! Any bytes into the TMQP codec; the promises that are checked stand beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-wire/tests/tmqp_check/mod.rs"]
mod tmqp_check;

fuzz_target!(|input: &[u8]| tmqp_check::check(input));
