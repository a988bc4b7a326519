//! Users, tokens and permissions: who may connect, and what each connection may do.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | users, tokens and the audit log as a configuration names them |
//! | [`store`] | the file of users and tokens |
//! | [`port`] | the interface behind which a program authenticates and authorizes |
//! | [`audit`] | the audit log |
//! | `state` | what one server knows of users, tokens and connected identities |
//! | `admission` | logins, off the tasks of connections |
//! | `gate` | the check that every command of a connection passes |
//! | `demand` | which permission each command needs |
//! | `keys` | permissions on rate limits, checked while a session reads |
//! | `verdicts` | questions to the authorizer of a program, and their answers |
//! | `reload` | reading users and tokens again while the server runs |

pub(crate) mod admission;
pub mod audit;
pub mod config;
mod demand;
pub(crate) mod gate;
pub(crate) mod keys;
pub mod port;
pub(crate) mod reload;
pub(crate) mod state;
pub mod store;
mod verdicts;

pub use self::config::{AuthorityConfig, settings};
