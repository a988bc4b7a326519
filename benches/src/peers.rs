//! Other brokers with the same work, for comparisons on one machine.

pub mod eventmq;
pub mod nats;
pub mod redis;
