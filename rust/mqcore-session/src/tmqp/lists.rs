//! Lists: the shards return them page by page, and a session reads one list at a time.
//!
//! A client that knows pages asks for one with a header, and gets it with the cursor of the next one. Original clients
//! know no pages: for them the session asks for one page after the other, and answers once it has the whole list.

use std::collections::VecDeque;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::RequestId;
use mqcore_broker::model::page::{PAGE_ENTRIES_MAX, Page};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_wire::tmqp::Frame;
use mqcore_wire::tmqp::header::{self, key};

use super::information;
use super::pending::{Form, PendingAnswer};

/// At this many unanswered lists no further frames are read.
pub(super) const OPEN_LISTS_MAX: usize = 256;

/// The page that a list operation asks for; by default the first one.
pub(super) fn page(frame: &Frame<'_>) -> Result<Page, Rejection> {
    if !frame.pending_response {
        // Only a response shows items; an acknowledgement shows that the request is possible.
        return Ok(Page { after: None, max: 1 });
    }
    let text = |key| header::header_value(frame.headers, key).map(<[u8]>::trim_ascii);
    let Some(size) = text(key::PAGE_SIZE) else {
        return match text(key::PAGE_AFTER) {
            Some(_) => {
                Err(bad(format!("the header {} needs the header {}", key::PAGE_AFTER, key::PAGE_SIZE)))
            }
            None => Ok(Page::default()),
        };
    };
    let size = str::from_utf8(size).ok().and_then(|digits| digits.parse().ok());
    let Some(max) = size.filter(|size| (1..=PAGE_ENTRIES_MAX).contains(size)) else {
        return Err(bad(format!(
            "the header {} must be a number from 1 to {PAGE_ENTRIES_MAX}",
            key::PAGE_SIZE
        )));
    };
    let after = text(key::PAGE_AFTER).map(str::from_utf8).transpose();
    let after = after.map_err(|_| bad(format!("the header {} must be UTF-8 text", key::PAGE_AFTER)))?;
    Ok(Page { after: after.map(Into::into), max })
}

fn bad(reason: String) -> Rejection {
    Rejection::new(RejectionKind::BadRequest, reason)
}

/// A list that is being read from the shards.
#[derive(Debug)]
pub(super) struct List {
    pub(super) answer: PendingAnswer,
    /// The request for the next page.
    request: Request,
    /// Maximum items of a page, of all shards together.
    page_max: usize,
    /// Number of shards that answer.
    parts: usize,
    /// Maximum bytes of the answer.
    bytes_max: u32,
    /// The answer so far: JSON without its end.
    body: Vec<u8>,
}

/// The lists of a connection.
#[derive(Debug, Default)]
pub(super) struct ListQueue {
    /// The first one is being read.
    numbers: VecDeque<RequestId>,
    /// Requests for pages that the session has still to send.
    pub(super) commands: Vec<Command>,
}

impl ListQueue {
    pub(super) fn add(&mut self, number: RequestId) {
        self.numbers.push_back(number);
    }

    /// Whether no further list may be added.
    pub(super) fn is_full(&self) -> bool {
        self.numbers.len() >= OPEN_LISTS_MAX
    }

    /// Whether there is only one list.
    pub(super) fn is_alone(&self) -> bool {
        self.numbers.len() == 1
    }

    pub(super) fn first(&self) -> Option<RequestId> {
        self.numbers.front().copied()
    }

    /// The lists that are left when the first one is complete.
    pub(super) fn end(mut self: Box<Self>) -> Option<Box<Self>> {
        self.numbers.pop_front();
        (!self.numbers.is_empty()).then_some(self)
    }
}

/// The answer to a list operation.
#[derive(Debug)]
pub(super) struct ListAnswer {
    /// The items as JSON.
    pub(super) body: Vec<u8>,
    /// The cursor of the next page, for clients that asked for one page.
    pub(super) next: Option<Box<str>>,
}

/// The step after a page.
pub(super) enum Progress {
    /// Ask the shards for the next page.
    Next(Box<Request>),
    /// Answer the client.
    Done(Result<ListAnswer, Rejection>),
}

impl List {
    /// A list that has not begun.
    pub(super) fn new(answer: PendingAnswer, mut request: Request, parts: usize, bytes_max: u32) -> Self {
        let page_max = request.page_mut().map_or(PAGE_ENTRIES_MAX, |page| {
            let page_max = page.max;
            // The names of a page are spread over all shards.
            page.max = page_max.div_ceil(parts);
            page_max
        });
        Self { answer, request, page_max, parts, bytes_max, body: Vec::new() }
    }

    /// The request for the next page.
    pub(super) fn request(&mut self) -> Box<Request> {
        self.answer.expect_parts(self.parts);
        Box::new(self.request.clone())
    }

    /// Takes a shard's part of a page. `None` if other parts are missing.
    pub(super) fn take(&mut self, part: Result<Reply, Rejection>) -> Option<Progress> {
        Some(match self.answer.take(part)? {
            Ok(page) => self.add(page),
            Err(rejection) => Progress::Done(Err(rejection)),
        })
    }

    fn add(&mut self, page: Reply) -> Progress {
        let next = information::append_page(page, self.page_max, &mut self.body);
        if self.body.len() > self.bytes_max as usize {
            let (limit, header) = (self.bytes_max, key::PAGE_SIZE);
            let smaller = if self.answer.form == Form::Page { "a smaller" } else { "the header" };
            let reason =
                format!("the list has more than {limit} bytes; ask for pages with {smaller} {header}");
            return Progress::Done(Err(Rejection::new(RejectionKind::LimitExceeded, reason)));
        }
        if let Form::Response = self.answer.form
            && let Some(page) = self.request.page_mut()
            && next.is_some()
        {
            page.after = next;
            return Progress::Next(self.request());
        }
        let mut body = std::mem::take(&mut self.body);
        information::end_list(&mut body);
        Progress::Done(Ok(ListAnswer { body, next }))
    }
}
