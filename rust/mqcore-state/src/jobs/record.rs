//! Records of jobs: bytes after the kind of the record.

use mqcore_broker::model::id::QueueAddress;
use mqcore_session::jobs::{Flow, JobEnd};

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedResult {
    pub(crate) id: Box<[u8]>,
    pub(crate) queue: QueueAddress,
    pub(crate) end: JobEnd,
    /// When it is forgotten, in Unix milliseconds.
    pub(crate) expires_ms: u64,
    pub(crate) body: Box<[u8]>,
}

/// A job of a flow that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedStep {
    /// The number of its flow.
    pub(crate) flow: u64,
    /// Its place there.
    pub(crate) step: u32,
    /// The job with the results that it gets.
    pub(crate) body: Box<[u8]>,
}

impl SavedResult {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let queue = self.queue.to_string();
        let end = match self.end {
            JobEnd::Done => 0,
            JobEnd::Failed => 1,
            JobEnd::Cancelled => 2,
        };
        let mut bytes = Vec::with_capacity(16 + self.id.len() + queue.len() + self.body.len());
        bytes.push(end);
        bytes.extend_from_slice(&self.expires_ms.to_le_bytes());
        // Ids have at most 255 bytes.
        bytes.push(self.id.len() as u8);
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&(queue.len() as u16).to_le_bytes());
        bytes.extend_from_slice(queue.as_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest(bytes);
        let end = match rest.array()? {
            [0] => JobEnd::Done,
            [1] => JobEnd::Failed,
            [2] => JobEnd::Cancelled,
            [end] => return Err(format!("a result of kind {end} is of a later version")),
        };
        let expires_ms = u64::from_le_bytes(rest.array()?);
        let [length] = rest.array()?;
        let id = rest.take(length.into())?.into();
        let length = u16::from_le_bytes(rest.array()?);
        let queue = str::from_utf8(rest.take(length.into())?).map_err(|error| error.to_string())?;
        let queue = QueueAddress::parse(queue).map_err(|error| error.to_string())?;
        Ok(Self { id, queue, end, expires_ms, body: rest.0.into() })
    }
}

impl SavedStep {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.flow.to_le_bytes()[..], &self.step.to_le_bytes(), &self.body].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest(bytes);
        let (flow, step) = (u64::from_le_bytes(rest.array()?), u32::from_le_bytes(rest.array()?));
        Ok(Self { flow, step, body: rest.0.into() })
    }
}

pub(crate) fn encode_flow(flow: &Flow) -> Vec<u8> {
    serde_json::to_vec(flow).expect("a flow has only texts and numbers")
}

pub(crate) fn decode_flow(bytes: &[u8]) -> Result<Flow, String> {
    Flow::parse(bytes)
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(taken)
    }
}
