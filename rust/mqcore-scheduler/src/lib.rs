//! What is to happen again and again, by interval or by cron, and when it is due.
//!
//! No socket, no file, no clock: the time is an argument of every call, in milliseconds since the Unix epoch, and zones come from
//! a database that the caller has opened. What happens when something is due is not known here.
//!
//! | module | what lives there |
//! |---|---|
//! | [`cron`] | cron expressions, and the moments that they name in a zone |
//! | [`plan`] | when something is due, how often, and what becomes of what was missed |
//! | [`scheduler`] | a million entries, and which of them are due |
//! | [`clock`] | whether the system's clock was set |
//! | [`record`] | an entry as bytes, to be kept anywhere |

pub mod clock;
pub mod cron;
pub mod plan;
pub mod record;
pub mod scheduler;
