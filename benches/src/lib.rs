//! Measures the broker from outside: a load generator, and the server as a separate process.
//!
//! `cargo run --release -p mqcore-bench --bin load -- all`
//!
//! | module | contents |
//! |---|---|
//! | [`scenario`] | the scenarios by name, and their comparisons |
//! | [`fanout`], [`work_queue`], [`latency`], [`memory`], [`durable`], [`limits`], [`eventmq`], [`schedules`] | the measurements |
//! | [`confirmed`], [`confirmation_age`] | producers that wait for confirmations |
//! | [`drive`] | one measurement of a broker that another program started |
//! | [`plain_loop`] | the speed of the disk without a broker |
//! | [`wire`] | the interface to a protocol |
//! | [`tmqp`], [`peers`] | mqcore; other brokers at the same work |
//! | [`process`], [`serve`] | the process under test, and its program |
//! | [`report`] | figures as a table and as JSON |

pub mod backlog;
pub mod confirmation_age;
pub mod confirmed;
pub mod drive;
pub mod durable;
pub mod eventmq;
pub mod fanout;
pub mod latency;
pub mod limits;
pub mod memory;
pub mod micromessage;
pub mod mqks;
pub mod peers;
pub mod plain_loop;
pub mod process;
pub mod report;
pub mod scenario;
pub mod schedules;
pub mod serve;
pub mod tmqp;
pub mod wire;
pub mod work_queue;

/// Bytes of every message body.
pub const BODY_BYTES: usize = 128;
