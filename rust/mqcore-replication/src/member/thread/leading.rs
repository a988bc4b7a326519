//! The leadership of a member, and its end, with which the process begins again.

use mqcore_consensus::replica::ReplicaRole;

use super::{Grouped, MemberThread};
use crate::member::RestartCommand;

impl MemberThread {
    pub(super) fn look_after_leadership(&self, group: &mut Grouped) {
        let (role, term) = (group.replica.role(), group.replica.term());
        let leads = role == ReplicaRole::Leader;
        match group.led {
            Some(led) if !leads || led != term => {
                self.lose_leadership("this node does not lead the cluster any more");
                group.led = None;
            }
            // All entries of earlier leaders are carried out once one of this term is.
            None if leads && group.applied_term == term && group.is_complete() => group.led = Some(term),
            _ => {}
        }
    }

    /// The broker of this process must not continue.
    pub(super) fn lose_leadership(&self, why: &str) {
        if !self.parts.shared.is_taken() {
            return;
        }
        if self.parts.replicator.is_stopping() {
            // A restart would forget the signal, or the administrator, that ends the process.
            tracing::warn!(
                why,
                "the broker was about to stop; the process ends without the rest of its work"
            );
            (self.parts.options.before_end)();
            std::process::exit(0);
        }
        tracing::warn!(why, "the process restarts and follows the new leader");
        (self.parts.options.before_end)();
        restart(&self.parts.options.restart);
    }
}

/// Continues with a new process in place of this one: no thread of the broker can do anything any more.
fn restart(wanted: &RestartCommand) -> ! {
    #[cfg(unix)]
    if let Some((program, arguments)) = wanted.command.split_first() {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(program);
        let error = command.args(arguments).envs(&wanted.environment).exec();
        tracing::error!(%error, "cannot restart the process");
    }
    std::process::abort()
}
