//! Any bytes into the Throttr codec; the promises that are checked stand beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-wire/tests/throttr_check/mod.rs"]
mod throttr_check;

fuzz_target!(|input: &[u8]| throttr_check::check(input));
