//! What producers learn of their messages.

use crate::context::Context;
use crate::context::decide::StepDecision;
use crate::model::command::Acknowledgement;
use crate::model::decision::Acknowledge;
use crate::model::effect::Event;
use crate::model::entry::Entry;
use crate::queue::Queue;

impl Queue {
    /// Carries out the acknowledge part of a verdict.
    pub(crate) fn acknowledge(
        &self,
        entry: &mut Entry,
        verdict: StepDecision,
        relayed: Option<(Acknowledgement, Box<str>)>,
        reason: &str,
        context: &mut Context<'_>,
    ) {
        let negative = match verdict.decision.acknowledge {
            Acknowledge::None => return,
            Acknowledge::IfSaved if !entry.saved => return,
            Acknowledge::IfSaved | Acknowledge::Always => None,
            Acknowledge::Negative => Some(reason),
        };
        self.answer_producer(entry, negative, relayed, !verdict.own, context);
    }

    /// Tells a message's producer its fate, once. `if_asked`: only a producer that asked for it.
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
        // A consumer's word is relayed only if it says what was decided.
        let relayed = relayed
            .filter(|(word, _)| word.refusal.is_some() == negative.is_some())
            .map(|(word, consumer)| Box::new((word, (!hidden).then_some(consumer))));
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
