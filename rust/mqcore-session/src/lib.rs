//! One peer's conversation, in one protocol: bytes in, commands out; events in, bytes out.
//!
//! No IO and no clock: time is an argument. Every protocol's words stop here.
//!
//! | module | what lives there |
//! |---|---|
//! | [`session`] | what every session can do |
//! | [`any`] | the session of a listener's protocol, and what is encoded once for many peers |
//! | [`node`] | what a session has to know of other brokers |
//! | [`tmqp`] | TMQP/2.0 |

pub mod any;
pub mod node;
pub mod session;
pub mod tmqp;
