//! The client of MQKS: lines of text, with the same connections, reconnects, consumers and receipts as TMQP.
//!
//! | module | content |
//! |---|---|
//! | `greeting` | the first line of a connection, which authenticates the client and detects peers of other protocols |
//! | `conversation` | turns lines into results |
//! | `operations` | operations of MQKS: rebinding, statistics |
//!
//! In MQKS a producer names an *event*, and the broker copies the message to each queue bound to it; there may be none.
//! A consumer of a queue chooses the queue's bindings, and whether it settles each message itself.

pub(crate) mod conversation;
pub(crate) mod greeting;
pub mod operations;
