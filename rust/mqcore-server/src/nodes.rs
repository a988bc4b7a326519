//! Links to other brokers: this broker's identity, what it forwards, and the connections to its upstreams.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | configuration of links to other brokers |
//! | [`filter`] | filters of a program, and the wait for their verdicts |
//! | `membership` | the state of links, for the rest of the server |
//! | `startup` | opens what was saved, and starts the links |
//! | `forwarder` | the thread that numbers, saves and forwards messages |
//! | `store` | its journal |
//! | `upstream` | the task of one upstream broker |
//! | `dial` | the transport and the handshake |

pub mod config;
mod dial;
pub mod filter;
pub(crate) mod forwarder;
pub(crate) mod membership;
pub(crate) mod startup;
mod store;
mod upstream;
