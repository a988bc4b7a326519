//! Findings for operators: queues that are stuck and why, failing handlers, full disks, and how to repair them.
//!
//! A task looks at the broker every second and keeps the findings for the admin side. It asks shards and reads counters, and
//! needs no handler, so it works while handlers are blocked.
//!
//! | module | contents |
//! |---|---|
//! | `finding` | one finding: its kind, cause and remedy |
//! | `rates` | how fast each queue moves, from samples of its counters |
//! | `observation` | the state of the broker at one moment |
//! | `rules` | which findings follow from that state |
//! | `text` | numbers and times in sentences |
//! | `state` | since when each finding has held |
//! | `watch` | the task |

pub(crate) mod finding;
mod observation;
pub(crate) mod rates;
mod rules;
pub(crate) mod state;
mod text;
pub(crate) mod watch;
