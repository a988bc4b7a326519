//! Policies: options for all queues of this shard that match a pattern. Every shard has all policies.

use crate::context::Context;
use crate::model::effect::Reply;
use crate::model::id::QueueAddress;
use crate::model::queue_policy::{POLICIES_MAX, PolicyReport, QueuePolicy, REJECTED_SHOWN};
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::shard::channel::check_changes;
use crate::shard::entities::Entities;

impl Entities {
    /// Sets a policy, and applies it and those above it to the queues that match it. A queue that cannot have the options
    /// stays as it is.
    pub(crate) fn set_policy(
        &mut self,
        policy: QueuePolicy,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        check_changes(None, &policy.options, context.state)?;
        context.check_definitions()?;
        if !context.state.policies.has_room(&policy.name) {
            let reason =
                format!("there are {POLICIES_MAX} policies, and there may not be more; remove one first");
            return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
        }
        context.state.policies.set(policy.clone());
        context.record(Record::DefinePolicy(Box::new(policy.clone())));
        let mut report = PolicyReport::default();
        for queue in self.matching(&policy) {
            match self.apply_policies(&queue, &policy, context) {
                Ok(()) => report.changed += 1,
                Err(rejection) if report.rejected.len() < REJECTED_SHOWN => {
                    report.rejected.push((queue, rejection.reason.into_owned()));
                }
                Err(_) => {}
            }
        }
        Ok(Reply::Policy(Box::new(report)))
    }

    fn matching(&self, policy: &QueuePolicy) -> Vec<QueueAddress> {
        let queues = self.ordered.values().flat_map(|key| {
            let channel = &self.channels[*key];
            channel.queues.keys().map(|id| QueueAddress { channel: channel.name.clone(), id: *id })
        });
        queues.filter(|queue| policy.pattern.matches(queue)).collect()
    }

    /// Applies a policy to a queue, and then those that apply after it.
    fn apply_policies(
        &mut self,
        queue: &QueueAddress,
        first: &QueuePolicy,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let Some(key) = self.lookup(&queue.channel) else { return Ok(()) };
        let policies = context.state.policies.of(queue).skip_while(|policy| policy.name != first.name);
        let options: Vec<_> = policies.map(|policy| policy.options.clone()).collect();
        for options in &options {
            self.channels[key].update_queue(queue.id, options, context)?;
        }
        Ok(())
    }

    /// Removes a policy. Its queues keep their options.
    pub(crate) fn remove_policy(
        &mut self,
        name: &str,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        context.check_definitions()?;
        if !context.state.policies.remove(name) {
            let reason = format!("policy {name} does not exist; list policies with mqcore policy ls");
            return Err(Rejection::new(RejectionKind::NotFound, reason));
        }
        context.record(Record::RemovePolicy(name.into()));
        Ok(Reply::Done)
    }
}
