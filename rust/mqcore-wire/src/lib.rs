//! Bytes to frames and back. Pure functions of bytes: no socket, no clock, no queue.
//!
//! | module | protocol |
//! |---|---|
//! | [`throttr`] | Throttr 7.1 and 7.3 |
//! | [`tmqp`] | TMQP/2.0, the protocol of Twino MQ 3.0 |

pub mod codec;
pub mod error;
pub mod throttr;
pub mod tmqp;
