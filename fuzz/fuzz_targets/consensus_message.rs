//! Any bytes into the decoder of messages between replicas; the promise that is checked stands beside the crate's tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../rust/mqcore-consensus/tests/message_check/mod.rs"]
mod message_check;

fuzz_target!(|input: &[u8]| message_check::check(input));
