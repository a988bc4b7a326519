//! Messages between the replicas of a group, and their encoding.
//!
//! An encoded message has a version byte and then, in this order: its type, `to`, `from`, term, term and index of the entry
//! before the message's, commit index and its term, flags, hint for rejected entries, requested snapshot, context, entries,
//! and a snapshot if flag 2 is set. Numbers are varints; bytes have their length before them. Senders must be authenticated,
//! because a replica believes every message.

use std::fmt;

use bytes::Bytes;
use mqcore_journal::varint::{self, push};
use protobuf::ProtobufEnum;
use raft::eraftpb;

use crate::log::LogSnapshot;
use crate::membership::ReplicaId;
use crate::storage::{snapshot_from_raft, snapshot_to_raft};

/// Version of the encoding.
const VERSION: u8 = 1;
const REJECTED: u8 = 1;
const HAS_SNAPSHOT: u8 = 2;

/// A message from one replica to another.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaMessage(pub(crate) eraftpb::Message);

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Encoded by another version.
    #[error(
        "the message has version {0} of the encoding, and this node knows version {VERSION}; upgrade this node"
    )]
    Version(u8),
    /// Cut off, or not a message.
    #[error("the message is damaged: its {0} cannot be read")]
    Damaged(&'static str),
    /// A type that no replica sends to another.
    #[error("messages of type {0} are not sent between nodes")]
    Type(u64),
}

impl ReplicaMessage {
    /// The receiver.
    #[must_use]
    pub fn to(&self) -> Option<ReplicaId> {
        ReplicaId::from_number(self.0.to)
    }

    /// The sender.
    #[must_use]
    pub fn from(&self) -> Option<ReplicaId> {
        ReplicaId::from_number(self.0.from)
    }

    /// Appends the encoded message.
    pub fn encode(&self, output: &mut Vec<u8>) {
        let message = &self.0;
        let snapshot = message.snapshot.as_ref();
        output.push(VERSION);
        push(output, message.msg_type.value() as u64);
        for number in [
            message.to,
            message.from,
            message.term,
            message.log_term,
            message.index,
            message.commit,
            message.commit_term,
        ] {
            push(output, number);
        }
        let flags = u8::from(message.reject) * REJECTED + u8::from(snapshot.is_some()) * HAS_SNAPSHOT;
        output.push(flags);
        push(output, message.reject_hint);
        push(output, message.request_snapshot);
        push_bytes(output, &message.context);
        push(output, message.entries.len() as u64);
        for entry in &message.entries {
            push(output, entry.entry_type.value() as u64);
            push(output, entry.term);
            push(output, entry.index);
            push_bytes(output, &entry.data);
        }
        if let Some(snapshot) = snapshot {
            encode_snapshot(&snapshot_from_raft(snapshot), output);
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are not exactly one message of a known version.
    pub fn decode(encoded: &Bytes) -> Result<Self, DecodeError> {
        let mut input = Input::new(encoded);
        let version = input.byte("version")?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let number = input.number("type")?;
        let kind = i32::try_from(number).ok().and_then(eraftpb::MessageType::from_i32);
        let kind = kind.filter(|&kind| travels(kind)).ok_or(DecodeError::Type(number))?;
        let mut message = eraftpb::Message { msg_type: kind, ..eraftpb::Message::default() };
        message.to = input.number("receiver")?;
        message.from = input.number("sender")?;
        message.term = input.number("term")?;
        message.log_term = input.number("log term")?;
        message.index = input.number("index")?;
        message.commit = input.number("commit index")?;
        message.commit_term = input.number("term of the commit index")?;
        let flags = input.byte("flags")?;
        message.reject = flags & REJECTED != 0;
        message.reject_hint = input.number("hint")?;
        message.request_snapshot = input.number("requested snapshot")?;
        message.context = input.bytes("context")?;
        for _ in 0..input.number("number of entries")? {
            let entry = input.entry()?;
            message.entries.push(entry);
        }
        if flags & HAS_SNAPSHOT != 0 {
            message.set_snapshot(snapshot_to_raft(&input.snapshot()?));
        }
        if input.at < encoded.len() {
            return Err(DecodeError::Damaged("end"));
        }
        Ok(Self(message))
    }
}

impl fmt::Display for ReplicaMessage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.0;
        let name = |id: Option<ReplicaId>| id.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
        write!(formatter, "{:?} from {} to {}, ", message.msg_type, name(self.from()), name(self.to()))?;
        write!(formatter, "term {}, after entry {}/{}, ", message.term, message.index, message.log_term)?;
        write!(formatter, "committed {}, {} entries", message.commit, message.entries.len())?;
        if message.reject {
            write!(formatter, ", rejected, try {}", message.reject_hint)?;
        }
        Ok(())
    }
}

/// Whether replicas send messages of a type to each other.
fn travels(kind: eraftpb::MessageType) -> bool {
    use eraftpb::MessageType as Type;
    matches!(
        kind,
        Type::MsgAppend
            | Type::MsgAppendResponse
            | Type::MsgRequestVote
            | Type::MsgRequestVoteResponse
            | Type::MsgRequestPreVote
            | Type::MsgRequestPreVoteResponse
            | Type::MsgSnapshot
            | Type::MsgHeartbeat
            | Type::MsgHeartbeatResponse
            | Type::MsgTimeoutNow
    )
}

pub(crate) fn encode_snapshot(snapshot: &LogSnapshot, output: &mut Vec<u8>) {
    push(output, snapshot.index);
    push(output, snapshot.term);
    let members = &snapshot.membership;
    for replicas in [&members.voters, &members.learners, &members.outgoing, &members.demoted] {
        push(output, replicas.len() as u64);
        replicas.iter().for_each(|replica| push(output, replica.to_number()));
    }
    push_bytes(output, &snapshot.data);
}

fn push_bytes(output: &mut Vec<u8>, bytes: &[u8]) {
    push(output, bytes.len() as u64);
    output.extend_from_slice(bytes);
}

/// Reads the numbers and parts of an encoding, one after the other.
pub(crate) struct Input<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// The bytes that were not read yet.
    pub(crate) fn rest(&self) -> Bytes {
        self.bytes.slice(self.at..)
    }

    pub(crate) fn byte(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(DecodeError::Damaged(field))?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn number(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let mut rest = &self.bytes[self.at..];
        let number = varint::take(&mut rest).ok_or(DecodeError::Damaged(field))?;
        self.at = self.bytes.len() - rest.len();
        Ok(number)
    }

    /// Bytes that share the memory of the message.
    fn bytes(&mut self, field: &'static str) -> Result<Bytes, DecodeError> {
        let length = usize::try_from(self.number(field)?).map_err(|_| DecodeError::Damaged(field))?;
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(DecodeError::Damaged(field))?;
        let part = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(part)
    }

    fn entry(&mut self) -> Result<eraftpb::Entry, DecodeError> {
        let kind = i32::try_from(self.number("kind of an entry")?).ok();
        let kind = kind
            .and_then(eraftpb::EntryType::from_i32)
            .filter(|&kind| kind != eraftpb::EntryType::EntryConfChange)
            .ok_or(DecodeError::Damaged("kind of an entry"))?;
        let mut entry = eraftpb::Entry { entry_type: kind, ..eraftpb::Entry::default() };
        entry.term = self.number("term of an entry")?;
        entry.index = self.number("index of an entry")?;
        entry.data = self.bytes("content of an entry")?;
        Ok(entry)
    }

    pub(crate) fn snapshot(&mut self) -> Result<LogSnapshot, DecodeError> {
        let mut snapshot = LogSnapshot {
            index: self.number("index of the snapshot")?,
            term: self.number("term of the snapshot")?,
            ..LogSnapshot::default()
        };
        let members = &mut snapshot.membership;
        for replicas in
            [&mut members.voters, &mut members.learners, &mut members.outgoing, &mut members.demoted]
        {
            for _ in 0..self.number("members")? {
                let id = ReplicaId::from_number(self.number("members")?);
                replicas.insert(id.ok_or(DecodeError::Damaged("members"))?);
            }
        }
        snapshot.data = self.bytes("snapshot")?;
        Ok(snapshot)
    }
}
