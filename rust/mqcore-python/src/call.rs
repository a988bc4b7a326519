//! Converts questions to arguments of Python methods.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::decision::{Decision, Step};
use mqcore_broker::model::effect::Question;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::observation::{Observation, ObservedSubject};
use mqcore_broker::model::options::Status;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::inspector::Inspector;
use crate::message::Message;
use crate::view::{Acknowledgement, ChannelView, ClientView, Delivery, NodeView, QueueView, status_of};

/// A prepared call for a question.
pub(crate) struct Call {
    /// The method.
    pub(crate) step: Step,
    /// Its arguments.
    pub(crate) arguments: Py<PyTuple>,
    /// Context for `exception_thrown`.
    pub(crate) about: CallContext,
}

/// The context of a call, kept for `exception_thrown`.
pub(crate) struct CallContext {
    /// The step that the broker asked about.
    pub(crate) step: Step,
    /// The queue; `None` for a notification.
    pub(crate) queue: Option<Py<QueueView>>,
    /// The message; `None` for an acknowledgement of something unknown.
    pub(crate) message: Option<Py<Message>>,
}

impl CallContext {
    /// Interprets a decision of `exception_thrown`. A message whose saving failed stays unsaved whatever the decision,
    /// so that its producer gets no false confirmation.
    pub(crate) fn recovered(&self, decision: Decision) -> Decision {
        if self.step == Step::SaveMessage { Decision::REFUSE } else { decision }
    }

    /// Copies the context.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            step: self.step,
            queue: self.queue.as_ref().map(|queue| queue.clone_ref(py)),
            message: self.message.as_ref().map(|message| message.clone_ref(py)),
        }
    }
}

/// A cache of recent views. Questions of one burst usually concern one queue and a few clients.
pub(crate) struct Views {
    inspector: Inspector,
    queue: Option<Py<QueueView>>,
    producer: Option<Py<ClientView>>,
    consumer: Option<Py<ClientView>>,
}

impl Call {
    /// Creates the arguments of `question`.
    pub(crate) fn new(py: Python<'_>, question: Question, views: &mut Views) -> PyResult<Self> {
        let Question { step, queue, status, message, attempt, saved, consumer, acknowledgement, .. } =
            question;
        if step == Step::Authenticate {
            let client = views.consumer(py, consumer)?;
            let arguments = (queue.channel.as_str(), client).into_pyobject(py)?.unbind();
            return Ok(Self { step, arguments, about: CallContext { step, queue: None, message: None } });
        }
        let queue = views.queue(py, queue, status)?;
        let message =
            message.map(|message| Py::new(py, Message::of_queue(message, saved, attempt))).transpose()?;
        let arguments = match step {
            Step::ReceivedFromProducer => {
                let producer = views.producer(py, message.as_ref())?;
                (&queue, &message, producer).into_pyobject(py)?
            }
            Step::Route => {
                let producer = views.producer(py, message.as_ref())?;
                (&message, producer).into_pyobject(py)?
            }
            Step::CanConsumerReceive => {
                let consumer = views.consumer(py, consumer)?;
                (&queue, &message, consumer).into_pyobject(py)?
            }
            Step::ConsumerReceived | Step::ConsumerReceiveFailed => {
                let consumer = views.consumer(py, consumer)?;
                let delivery = delivery(py, message.as_ref(), &consumer, attempt)?;
                (&queue, delivery, consumer).into_pyobject(py)?
            }
            Step::AcknowledgeReceived => {
                let consumer = views.consumer(py, consumer)?;
                let delivery = delivery(py, message.as_ref(), &consumer, attempt)?;
                let acknowledgement =
                    acknowledgement.map(|view| Py::new(py, Acknowledgement::new(view))).transpose()?;
                (&queue, acknowledgement, delivery).into_pyobject(py)?
            }
            Step::AcknowledgeTimedOut => {
                let consumer = views.consumer(py, consumer)?;
                (&queue, delivery(py, message.as_ref(), &consumer, attempt)?).into_pyobject(py)?
            }
            Step::BeginSend
            | Step::EndSend
            | Step::MessageTimedOut
            | Step::MessageDequeued
            | Step::SaveMessage
            | Step::ExceptionThrown => (&queue, &message).into_pyobject(py)?,
            // The broker notifies event handlers with observations.
            _ => PyTuple::empty(py),
        };
        let arguments = arguments.unbind();
        Ok(Self { step, arguments, about: CallContext { step, queue: Some(queue), message } })
    }

    /// Creates the arguments of a notification.
    pub(crate) fn observed(py: Python<'_>, observation: &Observation, views: &mut Views) -> PyResult<Self> {
        let step = observation.step;
        let arguments = match &*observation.subject {
            ObservedSubject::Client(client) => {
                (views.consumer(py, Some(client.clone()))?,).into_pyobject(py)?
            }
            ObservedSubject::Node(node) => (NodeView::new(node.clone()),).into_pyobject(py)?,
            ObservedSubject::Channel(channel) => (ChannelView::new(channel.clone()),).into_pyobject(py)?,
            ObservedSubject::Membership(channel, client) => {
                let client = views.consumer(py, Some(client.clone()))?;
                (ChannelView::new(channel.clone()), client).into_pyobject(py)?
            }
            ObservedSubject::Queue(information, before) => {
                let queue = QueueView::of(information);
                if step == Step::QueueStatusChanged {
                    (queue, status_of(py, *before)?).into_pyobject(py)?
                } else {
                    (queue,).into_pyobject(py)?
                }
            }
            ObservedSubject::Message { queue, status, message, saved } => {
                let queue = views.queue(py, queue.clone(), *status)?;
                let message = Py::new(py, Message::of_queue(message.clone(), *saved, 0))?;
                let producer = views.producer(py, Some(&message))?;
                (queue, message, producer).into_pyobject(py)?
            }
            ObservedSubject::Custom(client, message) => {
                let client = views.consumer(py, Some(client.clone()))?;
                (client, Message::new(message.clone())).into_pyobject(py)?
            }
        };
        let about = CallContext { step, queue: None, message: None };
        Ok(Self { step, arguments: arguments.unbind(), about })
    }
}

impl Views {
    /// No views yet. `inspector` reads the state of queues.
    pub(crate) fn new(inspector: Inspector) -> Self {
        Self { inspector, queue: None, producer: None, consumer: None }
    }

    pub(crate) fn queue(
        &mut self,
        py: Python<'_>,
        queue: Arc<QueueAddress>,
        status: Status,
    ) -> PyResult<Py<QueueView>> {
        if let Some(view) = &self.queue
            && view.get().shows(&queue, status)
        {
            return Ok(view.clone_ref(py));
        }
        let view = QueueView::new(queue, status, self.inspector.clone());
        Ok(self.queue.insert(Py::new(py, view)?).clone_ref(py))
    }

    fn producer(&mut self, py: Python<'_>, message: Option<&Py<Message>>) -> PyResult<Py<ClientView>> {
        let Some(message) = message.map(|message| message.get().inner()) else {
            return Py::new(py, ClientView::named(b""));
        };
        match message.producer() {
            Some(client) => seen_last(py, &mut self.producer, client),
            None => Py::new(py, ClientView::named(message.source())),
        }
    }

    fn consumer(&mut self, py: Python<'_>, consumer: Option<Arc<Client>>) -> PyResult<Py<ClientView>> {
        match consumer {
            Some(client) => seen_last(py, &mut self.consumer, &client),
            None => Py::new(py, ClientView::named(b"")),
        }
    }
}

fn seen_last(
    py: Python<'_>,
    last: &mut Option<Py<ClientView>>,
    client: &Arc<Client>,
) -> PyResult<Py<ClientView>> {
    Ok(match last {
        Some(view) if view.get().shows(client) => view.clone_ref(py),
        _ => last.insert(Py::new(py, ClientView::connected(client.clone()))?).clone_ref(py),
    })
}

fn delivery(
    py: Python<'_>,
    message: Option<&Py<Message>>,
    consumer: &Py<ClientView>,
    attempt: u16,
) -> PyResult<Option<Py<Delivery>>> {
    let Some(message) = message else { return Ok(None) };
    Py::new(py, Delivery::new(message.clone_ref(py), consumer.clone_ref(py), attempt)).map(Some)
}
