//! One peer's conversation, in one protocol: bytes in, commands out; events in, bytes out.
//!
//! No IO and no clock: time is an argument. Every protocol's words stop here.

pub mod session;
