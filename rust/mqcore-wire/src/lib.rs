//! Bytes to frames and back. Pure functions of bytes: no socket, no clock, no queue.
//!
//! | module | protocol |
//! |---|---|
//! | [`throttr`] | Throttr 7.1 and 7.3 |
//! | [`tmqp`] | TMQP/2.0, the protocol of Twino MQ 3.0 |
//! | [`micromessage`] | MicroMessage2, negotiated extensions |
//! | [`mqks`] | MQKS, one line of text a request |
//! | [`zmtp`] | ZMTP 3, ZeroMQ's frames |
//! | [`eventmq`] | eMQP/1.0, the messages of EventMQ within them |

pub mod codec;
pub mod error;
pub mod eventmq;
pub mod micromessage;
pub mod mqks;
pub mod throttr;
pub mod tmqp;
pub mod zmtp;
