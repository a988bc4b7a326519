//! One peer's conversation, in one protocol: bytes in, commands out; events in, bytes out.
//!
//! No IO and no clock: time is an argument. Every protocol's words stop here.
//!
//! | module | what lives there |
//! |---|---|
//! | [`session`] | what every session can do |
//! | [`any`] | the session of a listener's protocol, and what is encoded once for many peers |
//! | [`throttr`] | Throttr 7.1 and 7.3 |
//! | [`complaint`] | what could not be done, for the log |
//! | [`terms`] | what a listener says about how its protocol is spoken |
//! | [`node`] | what a session has to know of other brokers |
//! | [`tmqp`] | TMQP/2.0 |
//! | [`mqks`] | MQKS |
//! | [`micromessage`] | MicroMessage2 |
//! | [`eventmq`] | eMQP/1.0 (EventMQ) over ZMTP |

pub mod any;
pub mod complaint;
pub mod eventmq;
pub mod micromessage;
pub mod mqks;
pub mod node;
pub mod session;
pub mod terms;
pub mod throttr;
pub mod tmqp;
