//! Any bytes as a journal's files; the promises that are checked stand beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-journal/tests/recovery_check/mod.rs"]
mod recovery_check;

fuzz_target!(|input: &[u8]| recovery_check::check(input));
