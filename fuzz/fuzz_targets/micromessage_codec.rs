//! Any bytes into the MicroMessage2 codec; the promises that are checked stand beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-wire/tests/micromessage_check/mod.rs"]
mod micromessage_check;

fuzz_target!(|input: &[u8]| micromessage_check::check(input));
