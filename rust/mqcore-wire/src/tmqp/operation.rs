//! Codes in a TMQP frame's content type: server operations ("Server Operations"), status codes and handshake replies.
//!
//! The document numbers operations from 101 to 302, but the original program uses 601 to 663. A peer may send either, so the
//! decoder accepts both; the encoder writes the program's numbers.

/// Content type of the first frame of a connection, which has type [`crate::tmqp::Kind::SERVER`].
///
/// In any later frame, 101 is the document's number for [`Operation::CreateChannel`].
pub const HELLO: u16 = 101;
/// Content type of the server's frame that accepts a Hello. The frame's target is the client id.
pub const ACCEPTED: u16 = 202;
/// Content type of an event frame by which a client subscribes.
pub const EVENT_SUBSCRIBE: u16 = 1;
/// Content type of an event frame by which a client unsubscribes. Any value other than [`EVENT_SUBSCRIBE`] works.
pub const EVENT_UNSUBSCRIBE: u16 = 0;

/// Content type of a response ("Response Messages"). Applications define the values from 1000 on.
pub mod status {
    /// Success.
    pub const OK: u16 = 0;
    /// Failure without a reason.
    pub const FAILED: u16 = 1;
    /// The request is malformed.
    pub const BAD_REQUEST: u16 = 400;
    /// The client lacks permission.
    pub const UNAUTHORIZED: u16 = 401;
    /// The channel, queue, client or router does not exist.
    pub const NOT_FOUND: u16 = 404;
    /// The request is not possible in the current state.
    pub const UNACCEPTABLE: u16 = 406;
    /// The object or message already exists.
    pub const DUPLICATE: u16 = 481;
    /// A limit on clients, queues or messages is reached.
    pub const LIMIT_EXCEEDED: u16 = 482;
    /// The broker is busy; try again later.
    pub const BUSY: u16 = 503;
    /// Created by a client library that could not send; never on the wire.
    pub const SEND_ERROR: u16 = 581;
}

/// A server operation, sent in a frame of type [`crate::tmqp::Kind::SERVER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u16)]
pub enum Operation {
    /// Subscribe to every queue of a channel.
    JoinChannel = 601,
    /// Unsubscribe from a channel.
    LeaveChannel = 602,
    /// Create a channel.
    CreateChannel = 603,
    /// Delete a channel and its queues.
    RemoveChannel = 604,
    /// Describe one channel.
    ChannelInformation = 605,
    /// Describe the channels that match a filter.
    ChannelList = 606,
    /// Describe the clients that have joined a channel.
    ChannelConsumers = 607,
    /// mqcore extension: change the options of a channel.
    UpdateChannel = 608,
    /// Create a queue.
    CreateQueue = 610,
    /// Delete a queue.
    RemoveQueue = 611,
    /// Change the options of a queue.
    UpdateQueue = 612,
    /// Delete messages from a queue.
    ClearMessages = 613,
    /// Describe one queue.
    QueueInformation = 615,
    /// Describe the queues of a channel.
    QueueList = 616,
    /// Describe the nodes of the cluster.
    NodeList = 621,
    /// Describe the connected clients.
    ClientList = 631,
    /// mqcore extension: close the connection of a client.
    Disconnect = 632,
    /// Send a handler's decision from one node to another.
    NodeDecision = 641,
    /// 3.7: describe the routers.
    RouterList = 651,
    /// 3.7: create a router.
    CreateRouter = 652,
    /// 3.7: delete a router.
    RemoveRouter = 653,
    /// mqcore extension: report where a message would be routed.
    TestRoute = 654,
    /// mqcore extension: enable or disable a router.
    EnableRouter = 655,
    /// 3.7: describe the bindings of a router.
    BindingList = 661,
    /// 3.7: add a binding to a router.
    AddBinding = 662,
    /// 3.7: delete a binding of a router.
    RemoveBinding = 663,
    /// mqcore extension: restart the acknowledge timeout of a delivered message. Never answered.
    ExtendDelivery = 670,
}

impl Operation {
    /// Returns the operation with this code, which may be the program's number or the document's.
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
            608 => Self::UpdateChannel,
            610 | 201 => Self::CreateQueue,
            611 | 203 => Self::RemoveQueue,
            612 | 202 => Self::UpdateQueue,
            613 => Self::ClearMessages,
            615 | 205 => Self::QueueInformation,
            616 | 204 => Self::QueueList,
            621 | 301 => Self::NodeList,
            631 | 302 => Self::ClientList,
            632 => Self::Disconnect,
            641 => Self::NodeDecision,
            651 => Self::RouterList,
            652 => Self::CreateRouter,
            653 => Self::RemoveRouter,
            654 => Self::TestRoute,
            655 => Self::EnableRouter,
            661 => Self::BindingList,
            662 => Self::AddBinding,
            663 => Self::RemoveBinding,
            670 => Self::ExtendDelivery,
            _ => return None,
        })
    }

    /// Returns the program's number, the one that all peers understand.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_by_the_code_it_is_sent_with() {
        let known: Vec<_> =
            (0..=u16::MAX).filter_map(|code| Some((code, Operation::from_code(code)?))).collect();
        assert_eq!(known.len(), 27 + 13);
        for (code, operation) in known {
            assert_eq!(Operation::from_code(operation.code()), Some(operation));
            assert!(operation.code() == code || code < 600);
        }
    }

    #[test]
    fn document_codes_are_aliases() {
        assert_eq!(Operation::from_code(110), Some(Operation::JoinChannel));
        assert_eq!(Operation::from_code(110).map(Operation::code), Some(601));
        assert_eq!(Operation::from_code(614), None);
    }
}
