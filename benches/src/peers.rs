//! Other brokers at the same work, so that figures of one machine can be compared with each other.

pub mod eventmq;
pub mod nats;
pub mod redis;
