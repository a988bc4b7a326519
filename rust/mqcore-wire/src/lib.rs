//! Bytes to frames and back. Pure functions of bytes: no socket, no clock, no queue.
//!
//! | module | protocol |
//! |---|---|
//! | [`tmqp`] | TMQP/2.0, the protocol of Twino MQ 3.0 |

pub mod codec;
pub mod error;
pub mod tmqp;
