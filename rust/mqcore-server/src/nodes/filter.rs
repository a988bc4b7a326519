//! The interface to a program's filters, which decide which messages a link passes, and the wait for their verdicts.
//!
//! A connection whose frames need such a verdict holds them and all later frames until the filter answers or times
//! out. Other connections do not wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Acknowledgement, ClientPattern, Command};
use mqcore_broker::model::message::{Layout, Message, Properties};
use mqcore_cluster::filter::ForwardKind;
use mqcore_cluster::log::UpstreamSet;
use mqcore_session::forwards::ForwardBatch;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// A filter provided by a program. It sees the messages that the configured rules of its side allow.
pub trait NodeFilterPort: Send + Sync {
    /// Time for one question.
    fn timeout(&self) -> Duration;

    /// The verdict if there is no answer: too late, failed, or overloaded.
    fn fallback(&self) -> bool;

    /// Accepts a question. Must never block. False: it has no room, and there will be no answer.
    fn ask(&self, question: Arc<NodeQuestion>) -> bool;
}

/// The filters of a program, if it has any.
#[derive(Clone, Default)]
pub struct NodeFilters {
    /// For messages that downstream brokers forward here.
    pub accept: Option<Arc<dyn NodeFilterPort>>,
    /// For messages to each upstream broker, in the order of the configuration; shorter if the last ones have no
    /// filter.
    pub send: Vec<Option<Arc<dyn NodeFilterPort>>>,
}

impl fmt::Debug for NodeFilters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let send: Vec<_> = self.send.iter().map(Option::is_some).collect();
        let accept = self.accept.is_some();
        formatter.debug_struct("NodeFilters").field("accept", &accept).field("send", &send).finish()
    }
}

/// The target of a forwarded message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardTarget {
    /// A queue: its channel, and its id.
    Queue(Box<str>, u16),
    /// A topic.
    Topic(Box<str>),
    /// A router.
    Router(Box<str>),
    /// Clients, as a direct message names them: an id, `@name:NAME` or `@type:TYPE`.
    Client(Box<str>),
}

/// A forwarded frame as a filter sees it.
#[derive(Debug, Clone)]
pub struct ForwardedFrame {
    /// The kind of frame.
    pub kind: ForwardKind,
    /// Its target.
    pub goal: ForwardTarget,
    /// The message; for an acknowledgement its ID, source and headers.
    pub message: Message,
    /// The producer; only on the node where the message is produced.
    pub client: Option<Arc<Client>>,
    /// The name of the node that forwards it; `None`: this one.
    pub node: Option<Arc<str>>,
}

impl ForwardedFrame {
    /// The passage of a command; `None`: commands of this kind are not forwarded.
    fn of(command: &Command, client: Option<&Arc<Client>>, node: Option<&Arc<str>>) -> Option<Self> {
        let (kind, goal, message) = match command {
            Command::PassedOn(passed) => return Self::of(&passed.command, client, node),
            Command::Publish { queue, message } => (
                ForwardKind::Queue,
                ForwardTarget::Queue(queue.channel.as_str().into(), queue.id),
                message.clone(),
            ),
            Command::PublishTopic { topic, message, .. } => {
                let name = String::from_utf8_lossy(topic.as_bytes());
                (ForwardKind::Queue, ForwardTarget::Topic(name.into()), message.clone())
            }
            Command::Route { router, message } => {
                (ForwardKind::Router, ForwardTarget::Router(router.as_str().into()), message.clone())
            }
            Command::Direct { to, message } => {
                (ForwardKind::Direct, ForwardTarget::Client(named(to)), message.clone())
            }
            Command::AcknowledgeDirect { to, message } => {
                (ForwardKind::Acknowledge, ForwardTarget::Client(to.clone()), message.clone())
            }
            Command::Respond { to, message } => {
                (ForwardKind::Response, ForwardTarget::Client(to.clone()), message.clone())
            }
            Command::Acknowledge(word) => {
                let goal = ForwardTarget::Queue(word.queue.channel.as_str().into(), word.queue.id);
                (ForwardKind::Acknowledge, goal, acknowledgement(word, client))
            }
            _ => return None,
        };
        Some(Self { kind, goal, message, client: client.cloned(), node: node.cloned() })
    }
}

fn named(to: &ClientPattern) -> Box<str> {
    match to {
        ClientPattern::Id(id) => id.clone(),
        ClientPattern::Name(name) => format!("@name:{name}").into(),
        ClientPattern::Kind(kind) => format!("@type:{kind}").into(),
    }
}

fn acknowledgement(word: &Acknowledgement, client: Option<&Arc<Client>>) -> Message {
    let source = client.map(|client| client.id.as_bytes()).unwrap_or_default();
    let block = [&word.message_id[..], source, &word.headers].concat();
    let source_at = word.message_id.len();
    let headers_at = source_at + source.len();
    let layout = Layout {
        id: 0..source_at,
        source: source_at..headers_at,
        headers: headers_at..block.len(),
        body: block.len()..block.len(),
    };
    let properties = Properties { content_type: word.queue.id, hops: word.hops, ..Properties::default() };
    Message::new(&block, &layout, properties, None)
}

/// A batch of messages for a filter to decide about.
#[derive(Debug)]
pub struct NodeQuestion {
    passages: Vec<ForwardedFrame>,
    /// By passage: [`UNANSWERED`], or the verdict.
    verdicts: Box<[AtomicU8]>,
    answered: Notify,
    given_up: AtomicBool,
}

const UNANSWERED: u8 = 2;

impl NodeQuestion {
    fn new(passages: Vec<ForwardedFrame>) -> Self {
        let verdicts = passages.iter().map(|_| AtomicU8::new(UNANSWERED)).collect();
        Self { passages, verdicts, answered: Notify::new(), given_up: AtomicBool::new(false) }
    }

    /// The messages in order of arrival.
    #[must_use]
    pub fn passages(&self) -> &[ForwardedFrame] {
        &self.passages
    }

    /// Whether the answer is no longer needed.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Sets the verdict about a passage, by its index.
    pub fn answer(&self, passage: usize, passes: bool) {
        if let Some(verdict) = self.verdicts.get(passage) {
            verdict.store(u8::from(passes), Ordering::Release);
        }
    }

    /// There will be no further answers: the fallback decides about the rest.
    pub fn finish(&self) {
        self.answered.notify_one();
    }
}

/// Asks at once, and waits for all verdicts. `fallen_back` counts the passages without one.
fn ask(
    port: &Arc<dyn NodeFilterPort>,
    passages: Vec<ForwardedFrame>,
    fallen_back: &Arc<AtomicU64>,
) -> impl Future<Output = Vec<bool>> + Send + use<> {
    let deadline = Instant::now() + port.timeout();
    let fallback = port.fallback();
    let question = Arc::new(NodeQuestion::new(passages));
    let taken = port.ask(Arc::clone(&question));
    let fallen_back = Arc::clone(fallen_back);
    async move {
        if taken {
            // Timed out. Verdicts set by then still count.
            let _ = timeout_at(deadline, question.answered.notified()).await;
        }
        question.given_up.store(true, Ordering::Release);
        let mut missing = 0;
        let verdicts = question.verdicts.iter().map(|verdict| match verdict.load(Ordering::Acquire) {
            UNANSWERED => {
                missing += 1;
                fallback
            }
            passes => passes == 1,
        });
        let verdicts = verdicts.collect();
        fallen_back.fetch_add(missing, Ordering::Relaxed);
        verdicts
    }
}

/// A batch that has passed the filters, or needed none.
#[derive(Debug)]
pub(crate) struct FilteredBatch {
    pub(crate) commands: Vec<Command>,
    /// Bytes from which the commands were decoded.
    pub(crate) bytes: usize,
    /// Frames to be forwarded.
    pub(crate) noted: Option<ForwardBatch>,
    /// Numbers of forwarded messages that the filter rejected, to be confirmed.
    pub(crate) refused: Vec<u64>,
}

/// A batch that waits for its verdicts.
pub(crate) type PendingFilter = Pin<Box<dyn Future<Output = FilteredBatch> + Send>>;

/// The frames of one batch that filters of the program decide about.
#[derive(Debug, Default)]
pub(crate) struct PendingLinkFilter {
    /// For each upstream broker: indices of noted frames, and their content.
    by_upstream: Vec<(usize, Vec<usize>, Vec<ForwardedFrame>)>,
    noted: usize,
}

impl PendingLinkFilter {
    /// A command was noted for these upstreams.
    pub(crate) fn add(
        &mut self,
        filters: &NodeFilters,
        upstreams: UpstreamSet,
        command: &Command,
        client: &Arc<Client>,
    ) {
        if upstreams.is_empty() {
            return;
        }
        let frame = self.noted;
        self.noted += 1;
        for (upstream, _) in filters.send.iter().enumerate().filter(|(_, port)| port.is_some()) {
            if !upstreams.contains(upstream) {
                continue;
            }
            let Some(passage) = ForwardedFrame::of(command, Some(client), None) else { continue };
            match self.by_upstream.iter_mut().find(|(known, ..)| *known == upstream) {
                Some((_, frames, passages)) => {
                    frames.push(frame);
                    passages.push(passage);
                }
                None => self.by_upstream.push((upstream, vec![frame], vec![passage])),
            }
        }
    }

    /// Whether no filter has to be asked.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_upstream.is_empty()
    }

    /// Asks all filters at once, and withdraws the frames that they reject.
    pub(crate) fn judge(
        self,
        filters: &NodeFilters,
        counter: &Arc<AtomicU64>,
        mut judged: FilteredBatch,
    ) -> PendingFilter {
        let mut asked = Vec::new();
        for (upstream, frames, passages) in self.by_upstream {
            if let Some(Some(port)) = filters.send.get(upstream) {
                asked.push((upstream, frames, ask(port, passages, counter)));
            }
        }
        Box::pin(async move {
            for (upstream, frames, verdicts) in asked {
                let verdicts = verdicts.await;
                for (frame, _) in frames.into_iter().zip(verdicts).filter(|(_, passes)| !passes) {
                    if let Some(noted) = &mut judged.noted {
                        noted.withdraw(frame, upstream);
                    }
                }
            }
            judged.noted = judged.noted.take().filter(|noted| !noted.is_empty());
            judged
        })
    }
}

/// Asks the filter of this broker about messages that another broker forwards, and removes those that it rejects.
pub(crate) fn filter_accepted(
    port: &Arc<dyn NodeFilterPort>,
    counter: &Arc<AtomicU64>,
    node: &Client,
    mut judged: FilteredBatch,
) -> PendingFilter {
    let name: Arc<str> = node.name.as_deref().unwrap_or_default().into();
    let (mut places, mut passages) = (Vec::new(), Vec::new());
    for (place, command) in judged.commands.iter().enumerate() {
        if let Some(passage) = ForwardedFrame::of(command, None, Some(&name)) {
            places.push(place);
            passages.push(passage);
        }
    }
    if passages.is_empty() {
        return Box::pin(std::future::ready(judged));
    }
    let verdicts = ask(port, passages, counter);
    Box::pin(async move {
        let verdicts = verdicts.await;
        let mut refused =
            places.into_iter().zip(verdicts).filter(|(_, passes)| !passes).map(|(place, _)| place);
        let mut next = refused.next();
        let commands = std::mem::take(&mut judged.commands);
        for (place, command) in commands.into_iter().enumerate() {
            if next != Some(place) {
                judged.commands.push(command);
                continue;
            }
            next = refused.next();
            if let Command::PassedOn(passed) = command {
                judged.refused.push(passed.ticket.number);
            }
        }
        judged
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use mqcore_broker::model::command::PassedOn;
    use mqcore_broker::model::id::{ConnectionId, QueueAddress, Tag};
    use mqcore_broker::model::intake::Ticket;
    use mqcore_broker::model::time::Timestamp;

    use super::*;

    /// Passes messages with this body; gives no verdict about messages with the body `?`.
    struct Only(&'static [u8], Mutex<Vec<Arc<NodeQuestion>>>);

    impl NodeFilterPort for Only {
        fn timeout(&self) -> Duration {
            Duration::from_secs(5)
        }

        fn fallback(&self) -> bool {
            true
        }

        fn ask(&self, question: Arc<NodeQuestion>) -> bool {
            for (place, passage) in question.passages().iter().enumerate() {
                if passage.message.body() != b"?" {
                    question.answer(place, passage.message.body() == self.0);
                }
            }
            question.finish();
            self.1.lock().expect("nobody panics").push(question);
            true
        }
    }

    fn passed_on(number: u64, body: &[u8]) -> Command {
        let ticket = Ticket { node: "n".into(), epoch: 1, number };
        let layout = Layout { id: 0..0, source: 0..0, headers: 0..0, body: 0..body.len() };
        let message = Message::passed_on(body, &layout, Properties::default(), ticket.clone());
        let queue = QueueAddress::parse("ch/1").expect("a queue");
        Command::PassedOn(Box::new(PassedOn { ticket, command: Command::Publish { queue, message } }))
    }

    #[tokio::test]
    async fn what_the_filter_refuses_is_done_and_what_it_says_nothing_about_falls_back() {
        let only = Arc::new(Only(b"yes", Mutex::default()));
        let port: Arc<dyn NodeFilterPort> = Arc::clone(&only) as _;
        let counter = Arc::new(AtomicU64::new(0));
        let node = Client {
            connection: ConnectionId(1),
            id: "w".into(),
            authenticated: false,
            name: Some("west".into()),
            kind: None,
            protocol: "tmqp",
            admin: false,
            user: None,
            connected_at: Timestamp(0),
            data: None,
        };
        let commands = vec![passed_on(1, b"yes"), passed_on(2, b"no"), passed_on(3, b"?")];
        let judged = FilteredBatch { commands, bytes: 9, noted: None, refused: Vec::new() };
        let judged = filter_accepted(&port, &counter, &node, judged).await;
        assert_eq!((judged.refused, judged.commands.len()), (vec![2], 2));
        assert_eq!(counter.load(Ordering::Relaxed), 1, "one had no answer");
        let asked = only.1.lock().expect("nobody panics");
        let passage = &asked[0].passages()[0];
        assert_eq!(
            (passage.node.as_deref(), &passage.goal),
            (Some("west"), &ForwardTarget::Queue("ch".into(), 1))
        );
        assert!(asked[0].is_given_up());
    }

    #[test]
    fn an_acknowledgement_is_shown_to_the_filter_with_its_parts() {
        let word = Acknowledgement {
            tag: Tag::CHANNEL,
            queue: QueueAddress::parse("ch/7").expect("a queue"),
            message_id: b"m1"[..].into(),
            refusal: None,
            headers: b"a:b\r\n"[..].into(),
            hops: 3,
            first_acquirer: false,
        };
        let shown = acknowledgement(&word, None);
        assert_eq!(
            (shown.id(), shown.source(), shown.headers(), shown.body()),
            (&b"m1"[..], &b""[..], &b"a:b\r\n"[..], &b""[..])
        );
        assert_eq!((shown.properties().content_type, shown.properties().hops), (7, 3));
    }
}
