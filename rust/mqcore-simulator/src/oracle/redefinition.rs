//! Operators that change queues: what happens to the messages there.

use super::{Oracle, SeenMessage};
use crate::scenario::definitions::QueueChange;

impl Oracle {
    /// An operator changes a queue.
    pub(crate) fn redefined(&mut self, queue: usize, change: QueueChange) {
        self.queues[queue].may_reject |= matches!(change, QueueChange::Limit(_) | QueueChange::Remove);
        if let QueueChange::Move(to) = change {
            return self.moves(queue, to);
        }
        let removes = matches!(change, QueueChange::Remove | QueueChange::Clear);
        self.queues[queue].was_removed |= change == QueueChange::Remove;
        if !removes && !self.queues[queue].was_removed {
            return;
        }
        // The queue loses its messages and the ids that it remembers, and until it exists again also its dead letters.
        for message in 0..self.messages.len() {
            let is_lost = {
                let mut ways = self.messages[message].queues.iter().flat_map(|first| self.way(*first));
                ways.any(|step| step == queue)
            };
            if is_lost {
                self.messages[message].is_unsafe = true;
                self.messages[message].may_be_doubled = true;
                self.messages[message].was_cleared |= change == QueueChange::Clear;
            }
        }
        for (defined, route) in self.defined.iter_mut().zip(&self.routes) {
            *defined &= !route.queues.contains(&queue);
        }
    }

    /// An operator moves messages of a queue to another one. Until the next calm, either queue may have each of them; none is
    /// lost, and none is in both.
    fn moves(&mut self, queue: usize, to: usize) {
        self.queues[queue].moved_to.push(to);
        let reached = self.reached_from(to);
        for message in 0..self.messages.len() {
            let may_move = {
                let mut ways = self.messages[message].queues.iter().flat_map(|first| self.way(*first));
                ways.any(|step| step == queue)
            };
            if may_move {
                reached.iter().for_each(|to| self.messages[message].may_be_in(*to));
            }
        }
    }

    /// A queue, and all queues to which moves that have begun, and may last, can take a message of it.
    pub(super) fn reached_from(&self, queue: usize) -> Vec<usize> {
        let mut reached = vec![queue];
        let mut next = 0;
        while let Some(queue) = reached.get(next).copied() {
            next += 1;
            let steps: Vec<usize> =
                self.way(queue).flat_map(|step| self.queues[step].moved_to.iter().copied()).collect();
            for step in steps {
                if !reached.contains(&step) {
                    reached.push(step);
                }
            }
        }
        reached
    }
}

impl SeenMessage {
    /// It may move to this queue, where its times and attempts begin anew.
    pub(super) fn may_be_in(&mut self, queue: usize) {
        if !self.queues.contains(&queue) {
            self.queues.push(queue);
        }
        self.is_timeless = true;
        self.was_moved = true;
    }
}
