//! Permissions of the peer: the gate that its commands pass, and the limits on logins, publishing and requests for
//! limits.
//! limits.

use std::sync::Arc;
use std::task::{Context, Poll};

use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;
use mqcore_session::permission::Permissions;
use mqcore_session::session::Session;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Connection;
use crate::authority::gate::GateAction;
use crate::authority::keys::LimitKeys;
use crate::stats::counters::CloseReason;

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<S> {
    pub(super) fn pass(&mut self, mut commands: Vec<Command>, bytes: usize, now: Timestamp) {
        if !self.hub.guard.is_open() {
            self.refuse_beyond_limits(&mut commands, now);
        }
        if self.admission.gate.is_open() {
            self.route(commands, bytes);
        } else {
            let mut steps = Vec::new();
            self.admission.gate.take(commands, bytes, &self.client, &self.hub, &mut steps);
            self.follow(steps, now);
        }
    }

    /// Checks whether the gate has identified the peer or decided about its commands.
    pub(super) fn pass_gate(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        if self.admission.gate.is_open() {
            return false;
        }
        let mut steps = Vec::new();
        let moved = self.admission.gate.poll(context, &self.client, &self.hub, &mut steps);
        self.follow(steps, now);
        moved
    }

    /// Gives the session an event that does not come from a shard.
    pub(super) fn answer(&mut self, event: Event, now: Timestamp) {
        self.give_event(event, now);
        self.admission.answered = true;
    }

    /// Continues the session after such events. Its peer may send nothing more before it has the answers.
    pub(super) fn finish_answers(&mut self, now: Timestamp) -> bool {
        if !std::mem::take(&mut self.admission.answered) {
            return false;
        }
        self.events_done();
        self.take_commands(now);
        self.log_request_errors();
        self.resume(now);
        true
    }

    pub(super) fn follow(&mut self, steps: Vec<GateAction>, now: Timestamp) {
        for step in steps {
            match step {
                GateAction::Pass(commands, bytes) => self.route(commands, bytes),
                GateAction::Become(client) => {
                    self.client = client;
                    self.restrict_limits();
                }
                GateAction::Tell(event) => {
                    if matches!(event, Event::Refused(_)) {
                        self.count_closed(CloseReason::Refused);
                    }
                    self.answer(event, now);
                }
            }
        }
    }

    pub(super) fn restrict_limits(&mut self) {
        if self.session.answers_limits()
            && let Some(keys) = self.admission.gate.limit_keys(&self.client, &self.hub)
        {
            let permissions: Arc<dyn Permissions> = Arc::<LimitKeys>::clone(&keys);
            self.session.restrict(permissions);
            self.admission.keys = Some(keys);
        }
    }

    /// Asks the authorizer about the limits at which the session stopped, and resumes the session when it answers.
    pub(super) fn ask_about_limits(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let Some(keys) = &self.admission.keys else { return false };
        if self.admission.asking.is_none() {
            self.admission.asking = keys.ask();
        }
        let Some(asking) = &mut self.admission.asking else { return false };
        let Poll::Ready(answers) = asking.as_mut().poll(context) else { return false };
        keys.remember(answers);
        self.admission.asking = None;
        self.hub.moved();
        self.input.woken = true;
        self.resume(now);
        self.look_at_session(Ok(()));
        true
    }

    pub(super) fn refuse_beyond_limits(&mut self, commands: &mut Vec<Command>, now: Timestamp) {
        let at = Nanos(self.hub.clock.nanos());
        let mut refused = Vec::new();
        let mut stranger = false;
        commands.retain(|command| {
            let refusal = self.hub.guard.refusal(&self.client, self.address, command, at);
            // Commands behind a rejected login are dropped.
            let passes = refusal.is_none() && !stranger;
            let counters = &self.hub.counters.limits;
            match &refusal {
                Some(Event::Refused(_)) => {
                    stranger = true;
                    counters.connect_refused.add(1);
                }
                Some(_) => counters.publish_refused.add(1),
                None => {}
            }
            refused.extend(refusal);
            passes
        });
        for event in refused {
            self.answer(event, now);
        }
    }
}
