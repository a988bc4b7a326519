//! Results, cancellations and flows of jobs. They share the journal of schedules, because the jobs of flows are like runs of
//! schedules: the broker sends each of them exactly once.
//!
//! | module | contents |
//! |---|---|
//! | [`ledger`] | what is known about jobs, and what follows when one ends |
//! | `flows` | jobs of which each begins when others have ended |
//! | [`record`] | records in the journal |

mod flows;
pub mod ledger;
pub mod record;
#[cfg(test)]
mod tests;
