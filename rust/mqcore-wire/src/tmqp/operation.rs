//! The numbers that a TMQP content type can mean: server operations, status codes, handshake answers.
//!
//! The document numbers the operations 101..302; the program never did, it has 601..663. A peer may use either, so
//! both are understood; what is sent are the program's.

/// Content type of the first frame of a connection, of kind [`crate::tmqp::Kind::SERVER`].
///
/// Only there: in any later frame 101 is the document's number of [`Operation::CreateChannel`].
pub const HELLO: u16 = 101;
/// Content type of the server's frame that accepts a Hello; its target is the client's id.
pub const ACCEPTED: u16 = 202;
/// Content type of a client's event frame that subscribes.
pub const EVENT_SUBSCRIBE: u16 = 1;
/// Content type of a client's event frame that unsubscribes. Any other than [`EVENT_SUBSCRIBE`] does.
pub const EVENT_UNSUBSCRIBE: u16 = 0;

/// Content type of a response: how the request went. From 1000 on they belong to applications.
pub mod status {
    /// Done.
    pub const OK: u16 = 0;
    /// Not done, no reason given.
    pub const FAILED: u16 = 1;
    /// The request makes no sense.
    pub const BAD_REQUEST: u16 = 400;
    /// The client may not do this.
    pub const UNAUTHORIZED: u16 = 401;
    /// No such channel, queue, client or router.
    pub const NOT_FOUND: u16 = 404;
    /// The request makes no sense in this state.
    pub const UNACCEPTABLE: u16 = 406;
    /// It is there already.
    pub const DUPLICATE: u16 = 481;
    /// A limit of clients, queues or messages is reached.
    pub const LIMIT_EXCEEDED: u16 = 482;
    /// Try later.
    pub const BUSY: u16 = 503;
    /// Made by a client's library when it could not send; never on the wire.
    pub const SEND_ERROR: u16 = 581;
}

/// What a frame of kind [`crate::tmqp::Kind::SERVER`] asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u16)]
pub enum Operation {
    /// Become a consumer of every queue of a channel.
    JoinChannel = 601,
    /// Stop being one.
    LeaveChannel = 602,
    /// Create a channel.
    CreateChannel = 603,
    /// Remove a channel and its queues.
    RemoveChannel = 604,
    /// Describe one channel.
    ChannelInformation = 605,
    /// Describe the channels that a filter matches.
    ChannelList = 606,
    /// Describe the clients that have joined a channel.
    ChannelConsumers = 607,
    /// Create a queue.
    CreateQueue = 610,
    /// Remove a queue.
    RemoveQueue = 611,
    /// Change the options of a queue.
    UpdateQueue = 612,
    /// Remove messages from a queue.
    ClearMessages = 613,
    /// Describe one queue.
    QueueInformation = 615,
    /// Describe the queues of a channel.
    QueueList = 616,
    /// Describe the nodes of the cluster.
    NodeList = 621,
    /// Describe the clients that are connected.
    ClientList = 631,
    /// A node tells another what its handler decided.
    NodeDecision = 641,
    /// 3.7: describe the routers.
    RouterList = 651,
    /// 3.7: create a router.
    CreateRouter = 652,
    /// 3.7: remove a router.
    RemoveRouter = 653,
    /// mqcore's own: say where a message would go.
    TestRoute = 654,
    /// 3.7: describe the bindings of a router.
    BindingList = 661,
    /// 3.7: add a binding to a router.
    AddBinding = 662,
    /// 3.7: remove a binding from a router.
    RemoveBinding = 663,
}

impl Operation {
    /// The operation of this content type, by the program's number or the document's.
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            601 | 110 => Self::JoinChannel,
            602 | 111 => Self::LeaveChannel,
            603 | 101 => Self::CreateChannel,
            604 | 103 => Self::RemoveChannel,
            605 | 105 => Self::ChannelInformation,
            606 | 104 => Self::ChannelList,
            607 => Self::ChannelConsumers,
            610 | 201 => Self::CreateQueue,
            611 | 203 => Self::RemoveQueue,
            612 | 202 => Self::UpdateQueue,
            613 => Self::ClearMessages,
            615 | 205 => Self::QueueInformation,
            616 | 204 => Self::QueueList,
            621 | 301 => Self::NodeList,
            631 | 302 => Self::ClientList,
            641 => Self::NodeDecision,
            651 => Self::RouterList,
            652 => Self::CreateRouter,
            653 => Self::RemoveRouter,
            654 => Self::TestRoute,
            661 => Self::BindingList,
            662 => Self::AddBinding,
            663 => Self::RemoveBinding,
            _ => return None,
        })
    }

    /// The program's number, which is the one that peers understand.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_by_the_number_it_is_sent_with() {
        let known: Vec<_> =
            (0..=u16::MAX).filter_map(|code| Some((code, Operation::from_code(code)?))).collect();
        assert_eq!(known.len(), 23 + 13);
        for (code, operation) in known {
            assert_eq!(Operation::from_code(operation.code()), Some(operation));
            assert!(operation.code() == code || code < 600);
        }
    }

    #[test]
    fn the_documents_numbers_are_aliases() {
        assert_eq!(Operation::from_code(110), Some(Operation::JoinChannel));
        assert_eq!(Operation::from_code(110).map(Operation::code), Some(601));
        assert_eq!(Operation::from_code(614), None);
    }
}
