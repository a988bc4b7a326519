//! Nodes that pass on to each other what clients produced: state machines without IO, time is an argument.
//!
//! A *slave* dials its *masters* and sends them what its clients produced. What it took for a master it numbers and keeps in
//! an [`log::OutgoingLog`] until that master confirmed it; a [`link::Link`] decides when to dial, what to send and when to give
//! a connection up. The master counts what arrives with [`receipts::Receipts`], confirms from the front on, and recognises
//! what comes a second time by its number (`mqcore_broker::model::intake`). So a message arrives once, in order, however often either side
//! is killed, as far as both keep what they promised to keep.
//!
//! | module | what lives there |
//! |---|---|
//! | [`filter`] | which messages go to a master, and which a master takes |
//! | [`log`] | what was taken for masters and is not confirmed |
//! | [`link`] | one connection to a master, from the dialling side |
//! | [`receipts`] | what came over one connection from a slave, and how much of it is confirmed |
//! | [`message`] | what nodes tell each other beside the messages themselves |
//!
//! Numbers and confirmations "up to and including" are also what replication by consensus needs: an entry is committed once a majority
//! confirmed up to it. It would be further kinds of [`message::LinkMessage`] over the same links.

pub mod filter;
pub mod link;
pub mod log;
pub mod message;
pub mod receipts;
