//! The downstream side of a link between brokers, which speaks TMQP.

pub use crate::tmqp::uplink::{
    Acceptance, LinkError, LinkInput, NodeIntroduction, PING, PONG, encode_position, encode_terminate,
    read_acceptance, read_input,
};
