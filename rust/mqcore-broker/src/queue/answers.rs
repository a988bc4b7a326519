//! Confirmations for producers.

use crate::context::Context;
use crate::context::decide::StepDecision;
use crate::model::command::Acknowledgement;
use crate::model::decision::Acknowledge;
use crate::model::effect::Event;
use crate::model::entry::Entry;
use crate::queue::Queue;

impl Queue {
    /// Carries out the acknowledge part of a decision.
    pub(crate) fn acknowledge(
        &self,
        entry: &mut Entry,
        step_decision: StepDecision,
        relayed: Option<(Acknowledgement, Box<str>)>,
        reason: &str,
        context: &mut Context<'_>,
    ) {
        let negative = match step_decision.decision.acknowledge {
            Acknowledge::None => return,
            Acknowledge::IfSaved if !entry.saved => return,
            Acknowledge::IfSaved | Acknowledge::Always => None,
            Acknowledge::Negative => Some(reason),
        };
        self.answer_producer(entry, negative, relayed, !step_decision.own, context);
    }

    /// Sends a message's confirmation to its producer, once. `if_asked`: only if the producer asked for
    /// one.
    pub(crate) fn answer_producer(
        &self,
        entry: &mut Entry,
        negative: Option<&str>,
        relayed: Option<(Acknowledgement, Box<str>)>,
        if_asked: bool,
        context: &mut Context<'_>,
    ) {
        if entry.answered || (if_asked && !entry.message.properties().pending_acknowledge) {
            return;
        }
        let Some(producer) = entry.message.producer() else { return };
        entry.answered = true;
        let hidden = self.metadata.options.hide_client_names;
        // A consumer's acknowledgement is relayed only if it agrees with the decision.
        let relayed = relayed
            .filter(|(acknowledgement, _)| acknowledgement.refusal.is_some() == negative.is_some())
            .map(|(acknowledgement, consumer)| Box::new((acknowledgement, (!hidden).then_some(consumer))));
        let to = producer.connection;
        let event = Event::Acknowledged {
            queue: self.metadata.address.clone(),
            message: entry.message.clone(),
            negative: negative.map(Into::into),
            relayed,
        };
        context.notify(to, event);
    }
}
