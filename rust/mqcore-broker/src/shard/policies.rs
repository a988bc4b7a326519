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
    /// Sets a policy, and applies all policies to the queues that match it. A queue that cannot have the options
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
            let Some(key) = self.lookup(&queue.channel) else { continue };
            match self.channels[key].apply_policies(queue.id, Some(&*policy.name), context) {
                None => report.changed += 1,
                Some(_) if report.rejected.len() == REJECTED_SHOWN => report.unlisted += 1,
                Some(rejection) => report.rejected.push((queue, rejection.reason.into_owned())),
            }
        }
        Ok(Reply::Policy(Box::new(report)))
    }

    /// Queues whose options are lost are not among them: these have others until their definitions are read.
    fn matching(&self, policy: &QueuePolicy) -> Vec<QueueAddress> {
        let queues = self.ordered.values().flat_map(|key| {
            let channel = &self.channels[*key];
            let known = channel.queues.iter().filter(|(_, queue)| !queue.metadata.options_lost);
            known.map(|(id, _)| QueueAddress { channel: channel.name.clone(), id: *id })
        });
        queues.filter(|queue| policy.pattern.matches(queue)).collect()
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
