//! How deliveries end, and settlements that wait for a handler.

use std::sync::Arc;

use crate::context::decide::DecisionState;
use crate::history::LifecycleEvent;
use crate::model::command::{Acknowledgement, Retry};
use crate::model::decision::{PutBack, Step};
use crate::model::entry::Entry;
use crate::queue::members::Consumer;

/// Something that ended and may still need a handler's decision.
#[derive(Debug)]
pub(crate) struct Settlement {
    pub(crate) subject: Settled,
    pub(crate) decision_state: DecisionState,
}

#[derive(Debug)]
pub(crate) enum Settled {
    /// A delivery. The settlement takes over its hold on the message.
    Delivery { held: usize, consumer: Arc<Consumer>, outcome: OwnedOutcome },
    /// An expired message.
    Expired(Entry),
}

/// How a delivery ended. Borrowed, since nearly all deliveries are settled at once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DeliveryOutcome<'a> {
    Acknowledged(&'a Acknowledgement),
    /// It was delivered; the consumer's terms require no acknowledgement.
    AutoAcknowledged,
    TimedOut,
    ConsumerLost,
}

/// A [`DeliveryOutcome`] that is kept while a handler decides.
#[derive(Debug)]
pub(crate) enum OwnedOutcome {
    Acknowledged(Box<Acknowledgement>),
    NotAcknowledged(DeliveryOutcome<'static>),
}

impl OwnedOutcome {
    pub(crate) fn outcome(&self) -> DeliveryOutcome<'_> {
        match self {
            Self::Acknowledged(acknowledgement) => DeliveryOutcome::Acknowledged(acknowledgement),
            Self::NotAcknowledged(outcome) => *outcome,
        }
    }
}

impl Settlement {
    pub(crate) fn is_expiry(&self) -> bool {
        matches!(self.subject, Settled::Expired(_))
    }

    /// The expired message, if it is about one.
    pub(crate) fn into_expired(self) -> Option<Entry> {
        match self.subject {
            Settled::Expired(entry) => Some(entry),
            Settled::Delivery { .. } => None,
        }
    }
}

impl<'a> DeliveryOutcome<'a> {
    pub(crate) fn into_owned(self) -> OwnedOutcome {
        match self {
            Self::Acknowledged(acknowledgement) => {
                OwnedOutcome::Acknowledged(Box::new(acknowledgement.clone()))
            }
            Self::AutoAcknowledged => OwnedOutcome::NotAcknowledged(DeliveryOutcome::AutoAcknowledged),
            Self::TimedOut => OwnedOutcome::NotAcknowledged(DeliveryOutcome::TimedOut),
            Self::ConsumerLost => OwnedOutcome::NotAcknowledged(DeliveryOutcome::ConsumerLost),
        }
    }

    pub(crate) fn step(self) -> Step {
        match self {
            Self::Acknowledged(_) | Self::AutoAcknowledged => Step::AcknowledgeReceived,
            Self::TimedOut => Step::AcknowledgeTimedOut,
            Self::ConsumerLost => Step::ConsumerReceiveFailed,
        }
    }

    pub(crate) fn lifecycle_event(self, consumer: &'a Consumer) -> LifecycleEvent<'a> {
        let consumer = &consumer.client;
        match self {
            Self::Acknowledged(acknowledgement) => match acknowledgement.negative() {
                None => LifecycleEvent::Acked(consumer),
                Some(reason) => LifecycleEvent::Nacked(consumer, reason),
            },
            Self::AutoAcknowledged => LifecycleEvent::Acked(consumer),
            Self::TimedOut => LifecycleEvent::TimedOut(consumer),
            Self::ConsumerLost => LifecycleEvent::ConsumerLost(consumer),
        }
    }

    pub(crate) fn is_positive(self) -> bool {
        match self {
            Self::Acknowledged(acknowledgement) => acknowledgement.refusal.is_none(),
            Self::AutoAcknowledged => true,
            Self::TimedOut | Self::ConsumerLost => false,
        }
    }

    /// The retry that the consumer asks for with a rejected message; `None` if it was not rejected.
    pub(crate) fn retry(self) -> Option<Retry> {
        match self {
            Self::Acknowledged(acknowledgement) => {
                acknowledgement.refusal.as_deref().map(|refusal| refusal.retry)
            }
            Self::AutoAcknowledged | Self::TimedOut | Self::ConsumerLost => None,
        }
    }

    /// Where to requeue a delivery that must be acknowledged and was not: a lost one at its old
    /// position, a rejected one at the end.
    pub(crate) fn requeue_position(self) -> PutBack {
        match self {
            Self::ConsumerLost => PutBack::Start,
            _ if self.is_positive() => PutBack::No,
            _ => PutBack::End,
        }
    }

    /// The reason in a negative confirmation to the producer.
    pub(crate) fn reason(self) -> &'a str {
        match self {
            Self::Acknowledged(acknowledgement) => acknowledgement.negative().unwrap_or("none"),
            Self::AutoAcknowledged => "none",
            Self::TimedOut => "timeout",
            Self::ConsumerLost => "consumer-lost",
        }
    }
}
