//! The client of MQKS: lines of text, over the same connections, reconnects, consumers and receipts as TMQP.
//!
//! | module | what lives there |
//! |---|---|
//! | `greeting` | the first line of a connection, which shows who the client is and that the peer speaks MQKS |
//! | `conversation` | lines in, results out |
//! | `operations` | what only MQKS has: rebinding, statistics |
//!
//! In MQKS a publisher names an *event*, and a copy goes to each queue that is bound to it; nobody has to have bound one. A
//! consumer of a queue says what the queue is bound to and whether it settles each message by itself.

pub(crate) mod conversation;
pub(crate) mod greeting;
pub mod operations;
