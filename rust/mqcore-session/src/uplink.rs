//! The downstream side of a link between brokers, which speaks TMQP.

pub use crate::tmqp::uplink::{
    Acceptance, Introduction, LinkError, LinkInput, PING, PONG, encode_position, encode_terminate,
    read_acceptance, read_input,
};
