//! Authentication and authorization as plain values: users with passwords, tokens with scopes, patterns, and audit records.
//!
//! The crate performs no IO and has no clock or source of randomness: the time and random bytes are arguments.
//!
//! | module | content |
//! |---|---|
//! | `action`, `resource` | what a client wants to do, and with which resource |
//! | `pattern`, `rule`, `grants` | permissions: as text, and resolved for fast checks |
//! | `credentials` | a peer's credentials: a token, or a user name and a password |
//! | `password`, `token`, `hexadecimal` | how secrets are created, stored and compared |
//! | `address` | ranges of network addresses |
//! | `record` | users and tokens, as stored |
//! | `login` | authentication: from credentials to an identity or a rejection |
//! | `attempts` | rate limit on password checks per address |
//! | `audit` | records of the audit log |

pub mod action;
pub mod address;
pub mod attempts;
pub mod audit;
pub mod credentials;
pub mod grants;
mod hexadecimal;
pub mod login;
pub mod password;
pub mod pattern;
pub mod record;
pub mod resource;
pub mod rule;
pub mod token;
