//! Pending requests of one connection, without IO and without a clock.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::throttr::answer::{ConnectionRecord, ConsumeOutcome, SUBSCRIBER_BYTES, UsageCounts};
use mqcore_wire::throttr::reply::{
    self, Expected, Fragment, FragmentedRequest, Listed, ThrottrReply, decode,
};
use mqcore_wire::throttr::{Dialect, ID_BYTES, Ttl};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pushes::Push;
use crate::error::ClientError;

/// Maximum records of one answer; more than any store holds at its default limit.
const RECORDS_MAX: u64 = 1 << 26;

/// One subscriber of a channel, from the answer to CHANNEL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscriber {
    /// The id of its connection.
    pub id: [u8; ID_BYTES],
    /// Time of its subscription in Unix nanoseconds.
    pub since: u64,
    /// Payload bytes that this channel sent to it.
    pub read_bytes: u64,
    /// Payload bytes that it published there.
    pub write_bytes: u64,
}

/// An answer. `None`: the request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the requests")]
pub enum ThrottrAnswer {
    Status(bool),
    Counter(Option<(u64, Ttl)>),
    Buffer(Option<(Ttl, Bytes)>),
    Stat(Option<UsageCounts>),
    List(Vec<(Bytes, Listed)>),
    Stats(Vec<(Bytes, UsageCounts)>),
    Connections(Vec<ConnectionRecord>),
    /// Bytes read, bytes written, subscriptions.
    Channels(Vec<(Bytes, [u64; 3])>),
    Info(Box<[u64; 52]>, [u8; 16]),
    Connection(Option<Box<ConnectionRecord>>),
    Channel(Option<Vec<Subscriber>>),
    Id([u8; ID_BYTES]),
    Verdict(ConsumeOutcome),
    /// One status for all, and one for each.
    Verdicts(u8, Vec<ConsumeOutcome>),
}

/// The receiver of answers.
pub(crate) type Sender = oneshot::Sender<Result<Vec<ThrottrAnswer>, ClientError>>;

/// A batch of sent requests.
#[derive(Debug)]
pub(crate) struct RequestBatch {
    /// Expected answers.
    pub(crate) expected: VecDeque<Expected>,
    /// Received answers.
    pub(crate) answered: Vec<ThrottrAnswer>,
    /// `None`: the client's own requests.
    pub(crate) answers: Option<Sender>,
    /// Deadline.
    pub(crate) deadline: Instant,
    /// Channels that are subscribed to once all requests are answered.
    pub(crate) subscribes: Vec<Box<[u8]>>,
}

/// An incomplete answer in fragments.
#[derive(Debug)]
struct FragmentedAnswer {
    listing: FragmentedRequest,
    fragments_left: u64,
    records: u64,
    rows: ThrottrAnswer,
}

#[derive(Debug)]
pub(crate) struct Conversation {
    dialect: Dialect,
    limits: Limits,
    batches: VecDeque<RequestBatch>,
    fragmented: Option<FragmentedAnswer>,
    outstanding: usize,
}

/// The result of received bytes.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) pushes: Vec<Push>,
    /// New subscriptions.
    pub(crate) subscribed: Vec<Box<[u8]>>,
}

impl Conversation {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let limits = Limits::default();
        Self { dialect, limits, batches: VecDeque::new(), fragmented: None, outstanding: 0 }
    }

    /// Number of requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Deadline of the oldest request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.batches.front().map(|batch| batch.deadline)
    }

    pub(crate) fn asked(&mut self, batch: RequestBatch) {
        self.outstanding += batch.expected.len();
        self.batches.push_back(batch);
    }

    /// Fails all pending requests.
    pub(crate) fn fail(&mut self, error: &ClientError) {
        for batch in self.batches.drain(..) {
            if let Some(answers) = batch.answers {
                // The receiver is gone if the caller gave up.
                drop(answers.send(Err(error.clone())));
            }
        }
        self.outstanding = 0;
    }

    /// Handles all complete answers and messages.
    pub(crate) fn receive(&mut self, input: &mut BytesMut) -> Result<Received, WireError> {
        let mut received = Received::default();
        loop {
            let next = match (&self.fragmented, self.batches.front()) {
                (Some(fragmented), _) => Some(Expected::Fragment(fragmented.listing)),
                (None, Some(batch)) => batch.expected.front().copied(),
                (None, None) => None,
            };
            // An answer in fragments starts with a head; fragments are valid only after it.
            let expected = match next {
                Some(Expected::Fragment(_)) if self.fragmented.is_none() => Expected::Fragments,
                Some(expected) => expected,
                None => Expected::Status,
            };
            let Some((reply, size)) = decode(input, expected, self.dialect, &self.limits)? else {
                return Ok(received);
            };
            match reply {
                ThrottrReply::Push { channel, payload } => received.pushes.push(Push {
                    channel: channel.map(Bytes::copy_from_slice),
                    payload: Bytes::copy_from_slice(payload),
                }),
                _ if next.is_none() => {
                    return Err(WireError::Malformed { part: "answer", why: "no request is pending" });
                }
                ThrottrReply::Fragments(count) => self.unfold(next, count, &mut received)?,
                ThrottrReply::Fragment(fragment) => self.fragment(&fragment, &mut received)?,
                whole => {
                    if let Some(answer) = owned(whole) {
                        self.answered(answer, &mut received);
                    }
                }
            }
            input.advance(size);
        }
    }

    fn unfold(
        &mut self,
        next: Option<Expected>,
        fragments: u64,
        received: &mut Received,
    ) -> Result<(), WireError> {
        let Some(Expected::Fragment(listing)) = next else {
            return Err(WireError::Malformed { part: "answer", why: "no request with fragments is pending" });
        };
        let rows = match listing {
            FragmentedRequest::List => ThrottrAnswer::List(Vec::new()),
            FragmentedRequest::Stats => ThrottrAnswer::Stats(Vec::new()),
            FragmentedRequest::Connections => ThrottrAnswer::Connections(Vec::new()),
            FragmentedRequest::Channels => ThrottrAnswer::Channels(Vec::new()),
        };
        if fragments == 0 {
            self.answered(rows, received);
        } else {
            self.fragmented = Some(FragmentedAnswer { listing, fragments_left: fragments, records: 0, rows });
        }
        Ok(())
    }

    fn fragment(&mut self, fragment: &Fragment<'_>, received: &mut Received) -> Result<(), WireError> {
        let Some(fragmented) = &mut self.fragmented else { return Ok(()) };
        fragmented.records += fragment.len() as u64;
        if fragmented.records > RECORDS_MAX {
            return Err(WireError::TooLarge { part: "answer", size: fragmented.records, max: RECORDS_MAX });
        }
        for (record, name) in fragment.iter() {
            let name = Bytes::copy_from_slice(name);
            match &mut fragmented.rows {
                ThrottrAnswer::List(rows) => {
                    rows.extend(reply::listed(record, self.dialect.width).map(|row| (name, row)))
                }
                ThrottrAnswer::Stats(rows) => rows.extend(reply::uses(record).map(|row| (name, row))),
                ThrottrAnswer::Channels(rows) => rows.extend(reply::channel(record).map(|row| (name, row))),
                ThrottrAnswer::Connections(rows) => {
                    rows.extend(reply::connection(record, self.dialect.family))
                }
                _ => {}
            }
        }
        fragmented.fragments_left -= 1;
        if fragmented.fragments_left == 0
            && let Some(done) = self.fragmented.take()
        {
            self.answered(done.rows, received);
        }
        Ok(())
    }

    fn answered(&mut self, answer: ThrottrAnswer, received: &mut Received) {
        let Some(batch) = self.batches.front_mut() else { return };
        batch.expected.pop_front();
        batch.answered.push(answer);
        self.outstanding -= 1;
        if batch.expected.is_empty()
            && let Some(batch) = self.batches.pop_front()
        {
            received.subscribed.extend(batch.subscribes);
            if let Some(answers) = batch.answers {
                drop(answers.send(Ok(batch.answered)));
            }
        }
    }
}

fn owned(reply: ThrottrReply<'_>) -> Option<ThrottrAnswer> {
    Some(match reply {
        ThrottrReply::Status(yes) => ThrottrAnswer::Status(yes),
        ThrottrReply::Counter(found) => ThrottrAnswer::Counter(found),
        ThrottrReply::Buffer(found) => {
            ThrottrAnswer::Buffer(found.map(|(ttl, value)| (ttl, Bytes::copy_from_slice(value))))
        }
        ThrottrReply::Stat(found) => ThrottrAnswer::Stat(found),
        ThrottrReply::Info(numbers, version) => ThrottrAnswer::Info(numbers, version),
        ThrottrReply::Connection(found) => ThrottrAnswer::Connection(found),
        ThrottrReply::Channel(found) => ThrottrAnswer::Channel(found.map(subscribers)),
        ThrottrReply::Id(id) => ThrottrAnswer::Id(id),
        ThrottrReply::Verdict(verdict) => ThrottrAnswer::Verdict(verdict),
        ThrottrReply::Verdicts(status, verdicts) => ThrottrAnswer::Verdicts(status, verdicts),
        ThrottrReply::Push { .. } | ThrottrReply::Fragments(_) | ThrottrReply::Fragment(_) => return None,
    })
}

fn subscribers(bytes: &[u8]) -> Vec<Subscriber> {
    let read = |record: &[u8]| {
        let mut record = record;
        let mut id = [0; ID_BYTES];
        record.copy_to_slice(&mut id);
        Subscriber {
            id,
            since: record.get_u64_le(),
            read_bytes: record.get_u64_le(),
            write_bytes: record.get_u64_le(),
        }
    };
    bytes.chunks_exact(SUBSCRIBER_BYTES).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(
        conversation: &mut Conversation,
        expected: &[Expected],
    ) -> oneshot::Receiver<Result<Vec<ThrottrAnswer>, ClientError>> {
        let (sender, receiver) = oneshot::channel();
        conversation.asked(RequestBatch {
            expected: expected.iter().copied().collect(),
            answered: Vec::new(),
            answers: Some(sender),
            deadline: Instant::now(),
            subscribes: Vec::new(),
        });
        receiver
    }

    #[test]
    fn answers_reach_their_requests_with_messages_between_and_byte_by_byte() {
        let mut conversation = Conversation::new(Dialect::default());
        let mut first = ask(&mut conversation, &[Expected::Status, Expected::Counter]);
        let mut second =
            ask(&mut conversation, &[Expected::Fragment(FragmentedRequest::List), Expected::Status]);
        let mut bytes = vec![1, 3, 2, 0, b'h', b'i', 1, 7, 0, 4, 9, 0];
        bytes.push(1);
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend([1, 0, 4]);
        bytes.extend(5u64.to_le_bytes());
        bytes.extend([2, 0, b'k', 0]);
        let mut input = BytesMut::new();
        let mut pushes = Vec::new();
        for byte in bytes {
            input.extend_from_slice(&[byte]);
            pushes.extend(conversation.receive(&mut input).unwrap().pushes);
        }
        assert_eq!(pushes, [Push { channel: None, payload: Bytes::from_static(b"hi") }]);
        let ttl = Ttl { unit: 4, amount: 9 };
        assert_eq!(
            first.try_recv().unwrap().unwrap(),
            [ThrottrAnswer::Status(true), ThrottrAnswer::Counter(Some((7, ttl)))]
        );
        let listed = Listed { key_type: 0, unit: 4, deadline: 5, bytes_used: 2 };
        let key = Bytes::from_static(b"k");
        assert_eq!(
            second.try_recv().unwrap().unwrap(),
            [ThrottrAnswer::List(vec![(key, listed)]), ThrottrAnswer::Status(false)]
        );
        assert_eq!(conversation.outstanding(), 0);
    }

    #[test]
    fn an_unrequested_answer_ends_the_conversation() {
        let mut conversation = Conversation::new(Dialect::default());
        assert!(conversation.receive(&mut BytesMut::from(&[1][..])).is_err());
    }
}
