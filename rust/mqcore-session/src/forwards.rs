//! Commands of clients as frames for other brokers, which speak TMQP.

pub use crate::tmqp::forwards::{ForwardBatch, Forwards};
