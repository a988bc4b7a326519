//! Users, tokens and permissions: who may connect, and what each connection may do.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | settings for users, tokens and the audit log |
//! | [`store`] | the file of users and tokens |
//! | [`port`] | the interface behind which a program authenticates and authorizes |
//! | [`audit`] | the audit log |
//! | `state` | users, tokens and connected identities of one server |
//! | `admission` | logins, off the tasks of connections |
//! | `gate` | the check that every command of a connection passes |
//! | `demand` | which permission each command needs |
//! | `keys` | permissions on rate limits, checked while a session reads |
//! | `verdicts` | questions to the authorizer of a program, and their answers |
//! | `changes` | changes of users and tokens by a caller |
//! | `reload` | reading users and tokens again while the server runs |

pub(crate) mod admission;
pub mod audit;
mod changes;
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
