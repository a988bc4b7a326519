//! Totals of the history: every accepted message is still stored or was removed exactly once.

use std::collections::BTreeMap;

use mqcore_broker::history::LifecycleKind;
use mqcore_broker::history::reader::each_step;
use mqcore_broker::model::id::MessageNumber;
use mqcore_broker::model::stats::{DropReason, QueueInformation};
use mqcore_broker::shard::Broker;

/// The history of a shard, read incrementally.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Each step: its kind, its reason if it has one, the message's number, and whether it was the last one.
    pub steps: Vec<(LifecycleKind, Option<String>, u64, bool)>,
    /// Messages that are not removed, with their queue.
    open: BTreeMap<MessageNumber, String>,
    counts: BTreeMap<(LifecycleKind, Option<String>), u64>,
    opened: u64,
    closed: u64,
}

impl Ledger {
    /// Reads the steps since the last call.
    pub fn read(&mut self, broker: &mut Broker) {
        let mut blocks = Vec::new();
        broker.take_history(&mut blocks);
        for block in blocks {
            let mut steps = 0;
            each_step(&block.bytes, &mut |step| {
                steps += 1;
                let reason = step.reason.map(str::to_owned);
                let messages = step.numbers.map_or(1, |numbers| numbers.count());
                *self.counts.entry((step.kind, reason.clone())).or_default() += messages;
                self.steps.push((step.kind, reason, step.number.0, step.last));
                match step.kind {
                    LifecycleKind::Started | LifecycleKind::Gap => return,
                    LifecycleKind::Restored => {
                        let ranges = step.numbers.expect("a restart names all messages").iter();
                        for number in ranges.flat_map(|(first, last)| first..=last) {
                            self.opened += 1;
                            let before = self.open.insert(MessageNumber(number), step.queue.to_owned());
                            assert_eq!(before, None, "message {number} came twice");
                        }
                    }
                    LifecycleKind::Produced | LifecycleKind::Arrived => {
                        self.opened += 1;
                        let before = self.open.insert(step.number, step.queue.to_owned());
                        assert_eq!(before, None, "message {} came twice", step.number.0);
                    }
                    _ => {
                        let queue = self.open.get(&step.number).map(String::as_str);
                        assert_eq!(
                            queue,
                            Some(step.queue),
                            "{:?} of {} after its end",
                            step.kind,
                            step.number.0
                        );
                    }
                }
                if step.last {
                    self.closed += 1;
                    self.open.remove(&step.number);
                }
            })
            .expect("the broker writes what can be read");
            assert_eq!(steps, block.steps);
        }
    }

    /// Number of steps of this kind; of a step about several messages, their number.
    pub fn count(&self, kind: LifecycleKind) -> u64 {
        self.counts.iter().filter(|((counted, _), _)| *counted == kind).map(|(_, count)| count).sum()
    }

    /// Number of steps of this kind with this reason.
    pub fn because(&self, kind: LifecycleKind, reason: &str) -> u64 {
        self.counts.get(&(kind, Some(reason.to_owned()))).copied().unwrap_or(0)
    }

    /// Number of messages that are not removed.
    pub fn open(&self) -> u64 {
        self.open.len() as u64
    }

    /// Every accepted message is removed or stored, and the counters of the only queue match the history.
    pub fn agrees_with(&self, queue: &QueueInformation) {
        let there = queue.high_priority + queue.normal + queue.undecided + queue.unsettled;
        assert_eq!(self.open(), there, "messages that have not left, as the history and the queue have it");
        assert_eq!(self.opened, self.closed + self.open());
        let stats = &queue.stats;
        let taken = self.count(LifecycleKind::Produced)
            + self.count(LifecycleKind::Arrived)
            + self.count(LifecycleKind::Restored);
        assert_eq!(taken, stats.received);
        assert_eq!(self.closed, stats.removed);
        assert_eq!(self.count(LifecycleKind::Delivered), stats.deliveries);
        assert_eq!(self.count(LifecycleKind::Acked), stats.acks);
        assert_eq!(
            self.count(LifecycleKind::Nacked) + self.count(LifecycleKind::TimedOut),
            stats.negative_acks
        );
        assert_eq!(self.count(LifecycleKind::Expired), stats.timed_out);
        assert_eq!(self.count(LifecycleKind::Requeued), stats.requeued);
        assert_eq!(self.count(LifecycleKind::DeadLettered), stats.dead_lettered);
        assert_eq!(self.count(LifecycleKind::Moved), stats.moved);
        assert_eq!(self.count(LifecycleKind::Saved), stats.saved);
        for reason in DropReason::ALL {
            assert_eq!(
                self.because(LifecycleKind::Dropped, reason.as_str()),
                stats.dropped[reason as usize],
                "{reason:?}"
            );
        }
    }
}
