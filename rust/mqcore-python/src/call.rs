//! Converts questions to arguments of Python methods.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::decision::{Decision, Step};
use mqcore_broker::model::effect::Question;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::message::Message;
use crate::view::{Acknowledgement, ClientView, Delivery, QueueView};

/// A prepared call for a question.
pub(crate) struct Call {
    /// The method.
    pub(crate) step: Step,
    /// Its arguments.
    pub(crate) arguments: Py<PyTuple>,
    /// Context for `exception_thrown`.
    pub(crate) about: About,
}

/// The context of a call, kept for `exception_thrown`.
pub(crate) struct About {
    /// The step that the broker asked about.
    pub(crate) step: Step,
    /// The queue.
    pub(crate) queue: Py<QueueView>,
    /// The message; `None` for an acknowledgement of something unknown.
    pub(crate) message: Option<Py<Message>>,
}

impl About {
    /// Interprets a decision of `exception_thrown`. A message whose saving failed stays unsaved whatever the decision,
    /// so that its producer gets no false confirmation.
    pub(crate) fn recovered(&self, decision: Decision) -> Decision {
        if self.step == Step::SaveMessage { Decision::REFUSE } else { decision }
    }

    /// Copies the context.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            step: self.step,
            queue: self.queue.clone_ref(py),
            message: self.message.as_ref().map(|message| message.clone_ref(py)),
        }
    }
}

/// A cache of recent views. Questions of one burst usually concern one queue and a few clients.
#[derive(Default)]
pub(crate) struct Views {
    queue: Option<Py<QueueView>>,
    producer: Option<Py<ClientView>>,
    consumer: Option<Py<ClientView>>,
}

impl Call {
    /// Creates the arguments of `question`.
    pub(crate) fn new(py: Python<'_>, question: Question, views: &mut Views) -> PyResult<Self> {
        let Question { step, queue, status, message, attempt, consumer, acknowledgement, .. } = question;
        let queue = match &views.queue {
            Some(view) if view.get().shows(&queue, status) => view.clone_ref(py),
            _ => views.queue.insert(Py::new(py, QueueView::new(queue, status))?).clone_ref(py),
        };
        let message = message.map(|message| Py::new(py, Message::new(message))).transpose()?;
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
        };
        let arguments = arguments.unbind();
        Ok(Self { step, arguments, about: About { step, queue, message } })
    }
}

impl Views {
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
