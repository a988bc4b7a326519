//! All Python delivery handlers of one broker. It routes the questions of the shards to their dispatchers.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use mqcore_broker::model::effect::{Answer, HandlerFailure, Question};
use mqcore_broker::model::id::HandlerId;
use mqcore_broker::model::observation::Observation;
use mqcore_broker::model::policy;
use mqcore_server::authority::port::AuthorityPort;
use mqcore_server::extension::ExtensionPort;
use mqcore_server::handler::{AnswerSink, HandlerLoad, HandlerPort, HandlerTimes, StackRequest};
use mqcore_server::nodes::filter::{NodeFilterPort, NodeFilters};
use mqcore_server::spans::SpanBuffer;

use crate::authority::AuthorityThread;
use crate::dispatcher::Dispatcher;
use crate::extension::ExtensionThread;
use crate::leaked_threads::{self, LeakedThread};
use crate::load::Counts;
use crate::node_filter::FilterThread;
use crate::stacks::Stacks;

/// The dispatchers by [`HandlerId`].
///
/// The broker numbers the predefined policies first, in the order of [`policy::ALL`], and then every other key in the
/// order of its first registration. A replacing handler keeps the number. This table follows the same rule, so that a
/// dispatcher exists before the broker can use it.
pub(crate) struct Dispatchers {
    slots: RwLock<Vec<Slot>>,
    /// The program's own authenticator, if it has one.
    authority: RwLock<Option<Arc<AuthorityThread>>>,
    /// The program's extensions of MicroMessage2, if it has any.
    extensions: RwLock<Option<Arc<ExtensionThread>>>,
    filters: RwLock<Filters>,
    /// The destination of the spans of decisions; `None`: there are none.
    spans: Option<Arc<SpanBuffer>>,
    stacks: Stacks,
}

/// The program's filters for links between nodes.
#[derive(Default)]
struct Filters {
    accept: Option<Arc<FilterThread>>,
    send: Vec<Option<Arc<FilterThread>>>,
}

struct Slot {
    key: Box<str>,
    timeout: Duration,
    dispatcher: Option<Arc<Dispatcher>>,
}

impl Dispatchers {
    /// Without handlers. `spans`: the destination of the spans of decisions.
    pub(crate) fn new(spans: Option<Arc<SpanBuffer>>) -> Self {
        let slots = policy::ALL.iter().map(|policy| Slot {
            key: policy.key.into(),
            timeout: Duration::ZERO,
            dispatcher: None,
        });
        Self {
            slots: RwLock::new(slots.collect()),
            authority: RwLock::new(None),
            extensions: RwLock::new(None),
            filters: RwLock::default(),
            spans,
            stacks: Stacks::default(),
        }
    }

    /// The destination of the spans of decisions.
    pub(crate) fn spans(&self) -> Option<Arc<SpanBuffer>> {
        self.spans.clone()
    }

    /// Sets a dispatcher; returns the replaced one.
    pub(crate) fn set(
        &self,
        key: &str,
        timeout: Duration,
        dispatcher: Dispatcher,
    ) -> Option<Arc<Dispatcher>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let dispatcher = Some(Arc::new(dispatcher));
        match slots.iter_mut().find(|slot| *slot.key == *key) {
            Some(slot) => {
                slot.timeout = timeout;
                std::mem::replace(&mut slot.dispatcher, dispatcher)
            }
            None => {
                slots.push(Slot { key: key.into(), timeout, dispatcher });
                None
            }
        }
    }

    /// Sets the authenticator, before the server starts.
    pub(crate) fn set_authority(&self, thread: AuthorityThread) {
        *self.authority.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(thread));
    }

    /// Sets the extensions, before the server starts.
    pub(crate) fn set_extensions(&self, thread: ExtensionThread) {
        *self.extensions.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(thread));
    }

    /// Sets the node filters, before the server starts.
    pub(crate) fn set_node_filters(
        &self,
        accept: Option<Arc<FilterThread>>,
        send: Vec<Option<Arc<FilterThread>>>,
    ) {
        *self.filters.write().unwrap_or_else(PoisonError::into_inner) = Filters { accept, send };
    }

    /// The counters of every handler, by key.
    pub(crate) fn counts(&self) -> Vec<(Box<str>, Counts)> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter_map(|slot| Some((slot.key.clone(), slot.dispatcher.as_ref()?.counts()))).collect()
    }

    /// Ends all threads. Returns the keys of handlers whose call did not return by `deadline`; their threads are
    /// leaked. Call it detached from the interpreter, which handlers need to return.
    pub(crate) fn stop(&self, deadline: Instant) -> Vec<Box<str>> {
        let slots = std::mem::take(&mut *self.slots.write().unwrap_or_else(PoisonError::into_inner));
        let running: Vec<_> =
            slots.into_iter().filter_map(|slot| Some((slot.key, slot.dispatcher?))).collect();
        for (_, dispatcher) in &running {
            dispatcher.stop();
        }
        let authority = self.authority.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(authority) = &authority {
            authority.stop();
        }
        let filters = std::mem::take(&mut *self.filters.write().unwrap_or_else(PoisonError::into_inner));
        let filters: Vec<_> = filters.accept.into_iter().chain(filters.send.into_iter().flatten()).collect();
        filters.iter().for_each(|filter| filter.stop());
        let late_filters = filters.into_iter().filter(|filter| !filter.join(deadline)).map(|filter| {
            leaked_threads::add(filter);
            Box::from("node filter")
        });
        let authority = authority.filter(|authority| !authority.join(deadline));
        let late_authority = authority.map(|authority| {
            leaked_threads::add(authority);
            Box::from("authority")
        });
        let extensions = self.extensions.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(extensions) = &extensions {
            extensions.stop();
        }
        let late_extensions = extensions.filter(|extensions| !extensions.join(deadline)).map(|extensions| {
            leaked_threads::add(extensions);
            Box::from("extensions")
        });
        let late = running.into_iter().filter(|(_, dispatcher)| !dispatcher.join(deadline));
        late.map(|(key, dispatcher)| {
            leaked_threads::add(dispatcher);
            key
        })
        .chain(late_authority)
        .chain(late_extensions)
        .chain(late_filters)
        .collect()
    }

    fn dispatcher(&self, handler: HandlerId) -> Option<Arc<Dispatcher>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(usize::from(handler.0))?.dispatcher.clone()
    }
}

impl HandlerPort for Dispatchers {
    fn times(&self) -> Vec<HandlerTimes> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let times = slots.iter().filter_map(|slot| {
            let (steps, gil_waits) = slot.dispatcher.as_ref()?.times();
            Some(HandlerTimes { key: slot.key.clone(), steps, gil_waits })
        });
        times.collect()
    }

    fn loads(&self) -> Vec<HandlerLoad> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let loads = slots.iter().filter_map(|Slot { key, timeout, dispatcher }| {
            let Counts { asked, waiting, .. } = dispatcher.as_ref()?.counts();
            Some(HandlerLoad { key: key.clone(), asked, waiting: waiting as u64, timeout: *timeout })
        });
        loads.collect()
    }

    fn stack(&self, key: &str) -> StackRequest {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let found = slots.iter().find(|slot| *slot.key == *key).and_then(|slot| slot.dispatcher.clone());
        drop(slots);
        found.map_or(StackRequest::Unknown, |dispatcher| self.stacks.look(dispatcher))
    }

    fn authority(&self) -> Option<Arc<dyn AuthorityPort>> {
        let thread = self.authority.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(thread)
    }

    fn extensions(&self) -> Option<Arc<dyn ExtensionPort>> {
        let thread = self.extensions.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(thread)
    }

    fn node_filters(&self) -> NodeFilters {
        let filters = self.filters.read().unwrap_or_else(PoisonError::into_inner);
        let port = |filter: &Option<Arc<FilterThread>>| {
            filter.clone().map(|filter| -> Arc<dyn NodeFilterPort> { filter })
        };
        NodeFilters { accept: port(&filters.accept), send: filters.send.iter().map(port).collect() }
    }

    fn observe(&self, mut observations: Vec<Observation>) {
        while let Some(handler) = observations.first().map(|observation| observation.handler) {
            let (seen, rest): (Vec<_>, Vec<_>) =
                observations.into_iter().partition(|observation| observation.handler == handler);
            if let Some(dispatcher) = self.dispatcher(handler) {
                dispatcher.observe(seen);
            }
            observations = rest;
        }
    }

    fn ask(&self, mut questions: Vec<Question>, answers: &Arc<dyn AnswerSink>) {
        // Usually all questions of a batch are for one handler, and move without further inspection.
        while let Some(handler) = questions.first().map(|question| question.handler) {
            let (asked, rest) = if questions.iter().all(|question| question.handler == handler) {
                (questions, Vec::new())
            } else {
                questions.into_iter().partition(|question| question.handler == handler)
            };
            match self.dispatcher(handler) {
                Some(dispatcher) => dispatcher.ask(asked, answers),
                None => answers.answer(gone(asked)),
            }
            questions = rest;
        }
    }
}

fn gone(questions: Vec<Question>) -> Vec<Answer> {
    questions
        .into_iter()
        .filter(|question| question.wants_answer)
        .map(|question| Answer::new(question.id, Err(HandlerFailure::Gone)))
        .collect()
}
