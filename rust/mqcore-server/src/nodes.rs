//! Links to other brokers: this broker's identity, what it forwards, and the connections to its upstreams.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | what a broker is told about others |
//! | [`filter`] | filters that a program wrote, and the wait for their verdicts |
//! | `membership` | what the rest of the server knows of other brokers |
//! | `startup` | opens what was saved, and starts the links |
//! | `forwarder` | the thread that numbers, saves and hands out what is forwarded |
//! | `store` | its journal |
//! | `upstream` | the task that looks after one upstream |
//! | `dial` | the transport and the handshake |

pub mod config;
mod dial;
pub mod filter;
pub(crate) mod forwarder;
pub(crate) mod membership;
pub(crate) mod startup;
mod store;
mod upstream;
