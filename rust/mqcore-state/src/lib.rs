//! What a broker keeps beside its queues, and the journals in which it survives a crash.
//!
//! Contains no thread, clock or socket: the server's threads and the simulator call it with the time and a storage.
//!
//! | module | contents |
//! |---|---|
//! | [`limits`] | limits that survive a restart |

#![forbid(unsafe_code)]

pub mod limits;
