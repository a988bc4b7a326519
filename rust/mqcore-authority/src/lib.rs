//! Who may do what, as plain values: users with passwords, tokens with scopes, patterns, and what is written down about
//! each verdict. No IO, no clock, no randomness of its own: time and random bytes are arguments.
//!
//! | module | what lives there |
//! |---|---|
//! | `action`, `resource` | what somebody wants to do, and to what |
//! | `pattern`, `rule`, `grants` | what somebody may do, in words and resolved for quick answers |
//! | `credentials` | what a peer shows: a token, or a user and a password |
//! | `password`, `token`, `hexadecimal` | how secrets are made, kept and compared |
//! | `address` | ranges of network addresses |
//! | `record` | users and tokens as they are stored |
//! | `login` | from credentials to an identity, or to a refusal |
//! | `attempts` | how often one address may guess a password |
//! | `audit` | one line about one verdict |

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
