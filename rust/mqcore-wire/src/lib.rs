//! Frame codecs for every protocol that mqcore speaks.
//!
//! All codecs are pure functions over bytes: they use no socket, no clock and no queue. [`codec`] defines the contract
//! that they share.
//!
//! | module | protocol |
//! |---|---|
//! | [`throttr`] | Throttr 7.1 and 7.3 |
//! | [`tmqp`] | TMQP/2.0, the protocol of Twino MQ 3.0 |
//! | [`micromessage`] | MicroMessage2 and its negotiated extensions |
//! | [`mqks`] | MQKS, line-based text requests |
//! | [`zmtp`] | ZMTP 3, ZeroMQ's frames |
//! | [`eventmq`] | eMQP/1.0, EventMQ's messages on top of ZMTP |

pub mod codec;
pub mod error;
pub mod eventmq;
pub mod micromessage;
pub mod mqks;
pub mod throttr;
pub mod tmqp;
pub mod zmtp;
