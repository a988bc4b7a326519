//! Any bytes into the eMQP codec; the promises that are checked stand beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-wire/tests/eventmq_check/mod.rs"]
mod eventmq_check;

fuzz_target!(|input: &[u8]| eventmq_check::check(input));
