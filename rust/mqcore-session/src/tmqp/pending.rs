//! Requests to the broker that are not answered yet.

use mqcore_broker::model::command::{Command, MessageId, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::RequestId;
use mqcore_broker::model::rejection::Rejection;
use mqcore_wire::tmqp::Frame;
use slab::Slab;

use super::answer::RepeatedParts;
use super::lists::{List, ListAnswer, ListQueue, Progress};

/// At this many unanswered requests further ones are rejected.
pub(super) const OPEN_MAX: usize = 65_536;
/// An empty table that once held more than this frees its memory.
const KEPT_ENTRIES: usize = 32;

/// The number of requests that need no answer. Never an index of the table, which is smaller.
pub(super) const UNANSWERED: RequestId = RequestId(u32::MAX);

/// The form of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// A response.
    Response,
    /// A response; if it is a list, with one page of it.
    Page,
    /// An acknowledgement that repeats the target and content type of the request.
    Acknowledgement { target: Box<[u8]>, content_type: u16 },
    /// A response without details: accepted or not.
    YesOrNo,
    /// An acknowledgement that reports whether any consumer received a message.
    Receipt { target: Box<[u8]>, content_type: u16 },
}

impl Form {
    pub(super) fn is_response(&self) -> bool {
        matches!(self, Self::Response | Self::Page)
    }

    /// The receipt of a message.
    pub(super) fn receipt(frame: &Frame<'_>) -> Self {
        Self::Receipt { target: frame.target.into(), content_type: frame.content_type }
    }
}

/// An operation or subscription that waits for its answer.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    pub(super) id: MessageId,
    pub(super) first_acquirer: bool,
    pub(super) high_priority: bool,
    pub(super) form: Form,
    /// Shards that have not answered yet.
    parts_left: usize,
    /// The merged answers so far, if several shards answer.
    gathered: Option<Box<Result<Reply, Rejection>>>,
}

/// A pull that has not ended.
#[derive(Debug)]
pub(super) struct PendingPull {
    pub(super) id: MessageId,
    pub(super) first_acquirer: bool,
    pub(super) high_priority: bool,
    pub(super) channel: Box<[u8]>,
    pub(super) queue: u16,
    /// Whether the client wants the number of each message's attempt.
    pub(super) attempts: bool,
}

impl PendingPull {
    pub(super) fn repeated(&self) -> RepeatedParts<'_> {
        RepeatedParts { id: &self.id, first_acquirer: self.first_acquirer, high_priority: self.high_priority }
    }
}

impl PendingAnswer {
    pub(super) fn new(repeated: &RepeatedParts<'_>, form: Form) -> Self {
        Self {
            id: MessageId::from_slice(repeated.id),
            first_acquirer: repeated.first_acquirer,
            high_priority: repeated.high_priority,
            form,
            parts_left: 1,
            gathered: None,
        }
    }

    pub(super) fn repeated(&self) -> RepeatedParts<'_> {
        RepeatedParts { id: &self.id, first_acquirer: self.first_acquirer, high_priority: self.high_priority }
    }

    /// Begins to wait for this many parts.
    pub(super) fn expect_parts(&mut self, parts: usize) {
        self.parts_left = parts.max(1);
    }

    /// Takes one part of the answer. Returns the whole answer after the last part.
    pub(super) fn take(&mut self, part: Result<Reply, Rejection>) -> Option<Result<Reply, Rejection>> {
        self.parts_left = self.parts_left.saturating_sub(1);
        let answer = match self.gathered.take() {
            None => part,
            Some(gathered) => join(*gathered, part),
        };
        if self.parts_left == 0 {
            return Some(answer);
        }
        self.gathered = Some(Box::new(answer));
        None
    }
}

/// Merges two parts: the first rejection wins, lists grow.
fn join(one: Result<Reply, Rejection>, other: Result<Reply, Rejection>) -> Result<Reply, Rejection> {
    use Reply::{Channels, Clients, Nodes, Queues, Routers};
    let joined = match (one?, other?) {
        (Channels(mut all), Channels(more)) => {
            all.merge(more);
            Channels(all)
        }
        (Queues(mut all), Queues(more)) => {
            all.merge(more);
            Queues(all)
        }
        (Clients(mut all), Clients(more)) => {
            all.merge(more);
            Clients(all)
        }
        (Nodes(mut all), Nodes(more)) => {
            all.merge(more);
            Nodes(all)
        }
        (Routers(mut all), Routers(more)) => {
            all.merge(more);
            Routers(all)
        }
        (first, _) => first,
    };
    Ok(joined)
}

#[derive(Debug)]
enum PendingRequest {
    Answer(PendingAnswer),
    List(Box<List>),
    Pull(PendingPull),
}

/// The whole answer to a request.
pub(super) enum WholeAnswer {
    Reply(Result<Reply, Rejection>),
    List(Result<ListAnswer, Rejection>),
}

/// All unanswered requests, by request id.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    open: Slab<PendingRequest>,
    /// Boxed, because most clients never ask for a list.
    lists: Option<Box<ListQueue>>,
}

impl PendingRequests {
    /// Whether no further request may be sent for now.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= OPEN_MAX
    }

    /// Adds a request that `parts` shards answer.
    pub(super) fn expect_answer(&mut self, mut answer: PendingAnswer, parts: usize) -> RequestId {
        answer.expect_parts(parts);
        self.insert(PendingRequest::Answer(answer))
    }

    /// Adds a request that `parts` shards answer. Returns the command for the broker, unless it is a list that waits for
    /// other lists.
    pub(super) fn ask(
        &mut self,
        answer: PendingAnswer,
        mut request: Request,
        parts: usize,
        bytes_max: u32,
    ) -> Option<Command> {
        if !answer.form.is_response() || request.page_mut().is_none() {
            let number = self.expect_answer(answer, parts);
            return Some(Command::Request(number, Box::new(request)));
        }
        let list = List::new(answer, request, parts, bytes_max);
        let number = self.insert(PendingRequest::List(Box::new(list)));
        let lists = self.lists.get_or_insert_default();
        lists.add(number);
        if lists.is_alone() { self.begin_list() } else { None }
    }

    /// Whether so many lists wait that no further frames are read.
    #[inline]
    pub(super) fn has_too_many_lists(&self) -> bool {
        self.lists.as_ref().is_some_and(|lists| lists.is_full())
    }

    /// Begins the list that waits longest.
    fn begin_list(&mut self) -> Option<Command> {
        let number = self.lists.as_ref()?.first()?;
        let Some(PendingRequest::List(list)) = self.open.get_mut(number.0 as usize) else { return None };
        Some(Command::Request(number, list.request()))
    }

    fn send_later(&mut self, command: Option<Command>) {
        if let Some(lists) = &mut self.lists {
            lists.commands.extend(command);
        }
    }

    /// Takes the requests for further pages.
    pub(super) fn take_commands(&mut self) -> Vec<Command> {
        self.lists.as_mut().map(|lists| std::mem::take(&mut lists.commands)).unwrap_or_default()
    }

    /// Adds a pull.
    pub(super) fn expect_pulled(&mut self, pull: PendingPull) -> RequestId {
        self.insert(PendingRequest::Pull(pull))
    }

    fn insert(&mut self, open: PendingRequest) -> RequestId {
        RequestId(u32::try_from(self.open.insert(open)).unwrap_or(UNANSWERED.0))
    }

    /// Takes a part of an answer. Returns the whole answer and its request after the last part.
    pub(super) fn answered(
        &mut self,
        request: RequestId,
        part: Result<Reply, Rejection>,
    ) -> Option<(PendingAnswer, WholeAnswer)> {
        let answer = match self.open.get_mut(request.0 as usize)? {
            PendingRequest::Answer(pending) => WholeAnswer::Reply(pending.take(part)?),
            PendingRequest::List(list) => match list.take(part)? {
                Progress::Next(page) => {
                    self.send_later(Some(Command::Request(request, page)));
                    return None;
                }
                Progress::Done(answer) => {
                    self.lists = self.lists.take().and_then(|lists| lists.end());
                    let next = self.begin_list();
                    self.send_later(next);
                    WholeAnswer::List(answer)
                }
            },
            PendingRequest::Pull(_) => return None,
        };
        match self.remove(request)? {
            PendingRequest::Answer(pending) => Some((pending, answer)),
            PendingRequest::List(list) => Some((list.answer, answer)),
            PendingRequest::Pull(_) => None,
        }
    }

    /// The pull of this number.
    pub(super) fn pull(&self, request: RequestId) -> Option<&PendingPull> {
        match self.open.get(request.0 as usize)? {
            PendingRequest::Pull(pull) => Some(pull),
            PendingRequest::Answer(_) | PendingRequest::List(_) => None,
        }
    }

    /// Ends a pull.
    pub(super) fn pull_ended(&mut self, request: RequestId) -> Option<PendingPull> {
        self.pull(request)?;
        match self.remove(request)? {
            PendingRequest::Pull(pull) => Some(pull),
            PendingRequest::Answer(_) | PendingRequest::List(_) => None,
        }
    }

    fn remove(&mut self, request: RequestId) -> Option<PendingRequest> {
        let removed = self.open.try_remove(request.0 as usize);
        if self.open.is_empty() && self.open.capacity() > KEPT_ENTRIES {
            self.open = Slab::new();
        }
        removed
    }
}
