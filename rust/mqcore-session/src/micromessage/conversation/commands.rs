//! Commands: subscribe, unsubscribe, ping.

use std::str::FromStr;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::id::{QueueAddress, RequestId, Tag};
use mqcore_broker::model::subscription::{QueueSubscription, Settling, Terms as SubscriptionTerms};
use mqcore_broker::model::topic::TopicPattern;
use mqcore_wire::micromessage::extension::{ExtensionKind, WINDOW_MAX};
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure};
use mqcore_wire::micromessage::field::is_field;
use mqcore_wire::micromessage::filter::Filter;
use mqcore_wire::micromessage::{Frame, command, encode};

use super::{MicroMessageSession, PendingRequest, RequestSubject, made_by_receivers};
use crate::micromessage::destination::Place;
use crate::micromessage::subscriptions::{Key, Subscription};

/// The command that changes the prefetch of a subscription.
const PREFETCH: &str = "prefetch";

/// Rejects arguments that a known command does not have, and arguments that are given twice: with a misspelt `filter`, a
/// subscription would receive everything.
fn check_arguments(said: &command::CommandPayload<'_>, extended: bool) -> Result<(), ProtocolFailure> {
    let known: &[&str] = match &*said.name {
        "subscribe" if extended => &["id", "destination", "filter", "prefetch"],
        "subscribe" => &["id", "destination", "filter"],
        PREFETCH if extended => &["id", "count"],
        "unsubscribe" if extended => &["id", "destination", "started"],
        "unsubscribe" => &["id", "destination"],
        "working" if extended => &["sequence"],
        "ping" => &["id"],
        _ => return Ok(()),
    };
    for (place, (key, _)) in said.arguments.iter().enumerate() {
        if !known.contains(key) {
            let known = known.join(", ");
            let why = format!("{} has no argument {key}; its arguments are {known}", said.name);
            return Err(ProtocolFailure::new(ErrorToken::Malformed, why));
        }
        if said.arguments[..place].iter().any(|(earlier, _)| earlier == key) {
            let why = format!("{} has the argument {key} twice; write it once", said.name);
            return Err(ProtocolFailure::new(ErrorToken::Malformed, why));
        }
    }
    Ok(())
}

/// Parses a prefetch. Larger numbers than the largest window are that window.
fn prefetch(value: &[u8]) -> Result<u16, ProtocolFailure> {
    let number = str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
    match number.filter(|number| *number > 0) {
        Some(number) => Ok(number.min(WINDOW_MAX.into()) as u16),
        None => Err(ProtocolFailure::new(
            ErrorToken::Malformed,
            "a prefetch must be a number of messages, at least 1",
        )),
    }
}

/// Parses a number that a command needs, or may have.
fn number<T: FromStr>(what: &str, value: &[u8]) -> Result<T, ProtocolFailure> {
    let number = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| ProtocolFailure::new(ErrorToken::Malformed, format!("{what} must be a number")))
}

impl MicroMessageSession {
    pub(super) fn answers_commands(&self) -> bool {
        self.agreement.id_of_kind(ExtensionKind::Answers).is_some()
    }

    pub(super) fn command(
        &mut self,
        payload: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        let said = command::parse(payload)?;
        let id = match said.argument("id") {
            Some(id) if is_field(id) => Some(Box::from(String::from_utf8_lossy(id))),
            Some(_) => {
                return Err(ProtocolFailure::new(
                    ErrorToken::Malformed,
                    "an id may contain only lower-case letters, digits and hyphens",
                ));
            }
            None => None,
        };
        let done = match check_arguments(&said, self.answers_commands()) {
            Err(failure) => Err(failure),
            Ok(()) => self.run(&said, id.clone(), commands, output),
        };
        match (done, id) {
            (Err(failure), Some(id)) if self.answers_commands() => {
                match &*said.name {
                    PREFETCH => write_prefetch_fail(&id, &failure, output),
                    _ => write_fail(&id, &failure, output),
                }
                Ok(())
            }
            (done, _) => done,
        }
    }

    fn run(
        &mut self,
        said: &command::CommandPayload<'_>,
        id: Option<Box<str>>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        match &*said.name {
            "subscribe" | "unsubscribe" if self.agreement.id_of_kind(ExtensionKind::Subscribes).is_none() => {
                Err(ProtocolFailure::new(
                    ErrorToken::Unexpected,
                    format!("{} needs the extension pub-sub", said.name),
                ))
            }
            "subscribe" => self.subscribe(said, id, commands),
            "unsubscribe" => self.unsubscribe(said, id, commands, output),
            PREFETCH if self.answers_commands() => self.prefetch(said, id, commands, output),
            "working" if self.answers_commands() => {
                let sequence = said.argument("sequence").unwrap_or_default();
                self.outgoing.works_on(number("sequence", sequence)?, commands)
            }
            "ping" if self.answers_commands() => {
                if let Some(id) = &id {
                    write_ok(id, output);
                }
                Ok(())
            }
            other => Err(ProtocolFailure::new(
                ErrorToken::UnknownCommand,
                format!("{other}; known are subscribe and unsubscribe"),
            )),
        }
    }

    pub(super) fn subscribe(
        &mut self,
        said: &command::CommandPayload<'_>,
        id: Option<Box<str>>,
        commands: &mut Vec<Command>,
    ) -> Result<(), ProtocolFailure> {
        let destination = said.argument("destination").unwrap_or_default();
        let place = Place::parse(destination)?;
        let filter = Filter::parse(said.argument("filter").unwrap_or_default())
            .map_err(|error| ProtocolFailure::new(ErrorToken::BadFilter, error.to_string()))?;
        if matches!(place, Place::Queue(_)) && !filter.is_empty() {
            let why = "filters apply to topics only: a queue delivers each message to one receiver";
            return Err(ProtocolFailure::new(ErrorToken::BadFilter, why));
        }
        let key = id.clone().map_or_else(|| Key::Destination(destination.into()), Key::Id);
        let prefetch = said.argument("prefetch").map_or(Ok(0), prefetch)?;
        let destination = destination.into();
        let subscription = Subscription { key, place: place.clone(), destination };
        let tag = self.subscriptions.add(subscription, filter)?;
        let request = match place {
            Place::Queue(queue) => Request::SubscribeQueue(Box::new(self.consuming(queue, tag, prefetch))),
            Place::Topic(topic) => Request::SubscribeTopic { pattern: TopicPattern::Exact(topic) },
        };
        self.ask(RequestSubject::Subscribing(tag), id, request, commands);
        Ok(())
    }

    /// Changes the prefetch of a subscription. A topic has none.
    fn prefetch(
        &mut self,
        said: &command::CommandPayload<'_>,
        id: Option<Box<str>>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        let missing = || ProtocolFailure::new(ErrorToken::Malformed, "prefetch needs an id and a count");
        let id = id.ok_or_else(missing)?;
        let count = prefetch(said.argument("count").ok_or_else(missing)?)?;
        let unknown = || ProtocolFailure::new(ErrorToken::Unexpected, "there is no such subscription");
        let tag = self.subscriptions.tag(&Key::Id(id.clone())).ok_or_else(unknown)?;
        match self.subscriptions.get(tag).map(|subscription| subscription.place.clone()) {
            Some(Place::Queue(queue)) => {
                let request = Request::SubscribeQueue(Box::new(self.consuming(queue, tag, count)));
                self.ask(RequestSubject::Prefetch, Some(id), request, commands);
            }
            Some(Place::Topic(_)) | None => write_ok(&id, output),
        }
        Ok(())
    }

    /// The subscription to a queue. `prefetch`: maximum number of unsettled messages within the window of the connection;
    /// 0: the window.
    pub(super) fn consuming(&self, queue: QueueAddress, tag: Tag, prefetch: u16) -> QueueSubscription {
        let terms = match self.agreement.acknowledging() {
            Some(acknowledging) => SubscriptionTerms {
                settling: Settling::Explicit,
                window: match prefetch {
                    0 => acknowledging.window.into(),
                    prefetch => acknowledging.window.min(prefetch).into(),
                },
                in_order: true,
                ..SubscriptionTerms::default()
            },
            None => SubscriptionTerms { settling: Settling::AtOnce, ..SubscriptionTerms::default() },
        };
        let create = Some(Box::new(made_by_receivers()));
        QueueSubscription { queue, tag, terms, create, name: None, binding: None, notify_self: false }
    }

    pub(super) fn unsubscribe(
        &mut self,
        said: &command::CommandPayload<'_>,
        id: Option<Box<str>>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        let key = match (&id, said.argument("destination")) {
            (Some(id), _) => Key::Id(id.clone()),
            (None, Some(destination)) => Key::Destination(destination.into()),
            (None, None) => {
                return Err(ProtocolFailure::new(
                    ErrorToken::Malformed,
                    "unsubscribe needs the id or destination of a subscription",
                ));
            }
        };
        let started = said.argument("started").map(|started| number("started", started)).transpose()?;
        let unknown = || ProtocolFailure::new(ErrorToken::Unexpected, "there is no such subscription");
        let tag = self.subscriptions.tag(&key).ok_or_else(unknown)?;
        let place = self.subscriptions.get(tag).map(|subscription| subscription.place.clone());
        match place {
            Some(Place::Queue(queue)) => {
                // Messages in flight still have to find it, unless they are requeued anyway.
                self.subscriptions.unname(tag);
                self.outgoing.forget(tag);
                let request = Request::UnsubscribeQueue { queue, tag, started };
                self.ask(RequestSubject::Unsubscribing(tag), id, request, commands);
            }
            Some(Place::Topic(topic)) => {
                if let Some((_, true)) = self.subscriptions.end(tag) {
                    let request = Request::UnsubscribeTopic { pattern: TopicPattern::Exact(topic) };
                    self.ask(RequestSubject::Unsubscribing(tag), id, request, commands);
                } else if let Some(id) = id.filter(|_| self.answers_commands()) {
                    write_ok(&id, output);
                }
            }
            None => {}
        }
        Ok(())
    }

    pub(super) fn ask(
        &mut self,
        about: RequestSubject,
        id: Option<Box<str>>,
        request: Request,
        commands: &mut Vec<Command>,
    ) {
        let number = self.asked.insert(PendingRequest { about, id });
        let number = RequestId(u32::try_from(number).expect("the number of open requests is limited"));
        commands.push(Command::Request(number, Box::new(request)));
    }
}

pub(super) fn write_ok(id: &str, output: &mut Vec<u8>) {
    write_command("ok", &[("id", id.as_bytes())], output);
}

pub(super) fn write_fail(id: &str, failure: &ProtocolFailure, output: &mut Vec<u8>) {
    write_command("fail", &[("id", id.as_bytes()), ("reason", failure.to_string().as_bytes())], output);
}

/// Answers a `prefetch`. Without the name of the command, the peer would take it for the end of the subscription.
pub(super) fn write_prefetch_fail(id: &str, failure: &ProtocolFailure, output: &mut Vec<u8>) {
    let reason = failure.to_string();
    let arguments = [("id", id.as_bytes()), ("command", PREFETCH.as_bytes()), ("reason", reason.as_bytes())];
    write_command("fail", &arguments, output);
}

fn write_command(name: &str, arguments: &[(&str, &[u8])], output: &mut Vec<u8>) {
    let mut payload = Vec::new();
    command::encode(name, arguments, &mut payload);
    encode(&Frame::Command { payload: &payload }, output);
}
