//! Links between brokers: state machines without IO, with the time as an argument.
//!
//! TMQP calls the two sides of a link *slave* and *master*; this crate and its documentation call them *downstream* and
//! *upstream* broker where no wire term is quoted. The downstream broker connects to its upstream brokers and forwards what
//! its clients published. It numbers the forwarded messages and keeps them in an [`log::OutgoingLog`] until the upstream
//! broker confirms them. A [`link::Link`] decides when to connect, what to send and when to give up a connection. The upstream
//! broker tracks arriving messages with [`receipts::Receipts`], confirms them in order, and recognizes duplicates by their
//! numbers (`mqcore_broker::model::intake`). Each message thus arrives once and in order, even if either side is killed, as
//! far as both sides preserve what they promised to store.
//!
//! | module | content |
//! |---|---|
//! | [`filter`] | which messages a link forwards, and which an upstream broker accepts |
//! | [`log`] | messages taken for upstream brokers and not confirmed yet |
//! | [`link`] | one connection to an upstream broker, on the connecting side |
//! | [`receipts`] | messages received over one connection, and how far they are confirmed |
//! | [`message`] | control messages between nodes |
//!
//! Numbering and cumulative confirmations are also the basis of consensus replication, in which an entry is committed once a
//! majority has confirmed it. It could be added as further kinds of [`message::LinkMessage`].
pub mod filter;
pub mod link;
pub mod log;
pub mod message;
pub mod receipts;
