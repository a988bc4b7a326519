//! Other brokers with the same work, for comparisons on one machine.

pub mod amqp;
pub mod eventmq;
pub mod mqtt;
pub mod nats;
pub mod redis;
