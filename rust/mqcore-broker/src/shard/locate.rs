//! Finding messages by id.

use crate::model::entry::{Entry, PagedOut};
use crate::model::location::{Location, LocationState, Locations, MessageQuery};
use crate::queue::Queue;
use crate::queue::ready::Unlisted;
use crate::shard::entities::Entities;

/// Maximum number of messages that a search looks at: about 10 ms of work.
const LOOKED_MAX: usize = 200_000;

impl Entities {
    /// Looks for a message in all queues of this shard. Changes nothing.
    pub(crate) fn locations(&self, query: &MessageQuery) -> Locations {
        let mut locations = Locations::default();
        let mut left = LOOKED_MAX;
        for queue in self.queues() {
            queue.locate_in(query, &mut left, &mut locations);
            if locations.more || locations.found.len() >= query.max {
                break;
            }
        }
        locations.found.truncate(query.max);
        locations
    }
}

impl Queue {
    fn location(&self, entry: &Entry, state: LocationState) -> Location {
        let producer = entry.message.producer().cloned();
        Location { producer, saved: entry.saved, ..self.paged_out_location(&of(entry), state) }
    }

    fn paged_out_location(&self, paged_out: &PagedOut, state: LocationState) -> Location {
        Location {
            queue: (*self.metadata.address).clone(),
            state,
            attempts: paged_out.attempts,
            requeues: paged_out.requeues,
            saved: true,
            number: paged_out.number,
            producer: None,
        }
    }

    fn locate_in(&self, query: &MessageQuery, left: &mut usize, locations: &mut Locations) {
        let found = &mut locations.found;
        let undecided =
            self.undecided().filter(|entry| query.matches(Some(entry.message.id()), entry.number));
        found.extend(undecided.map(|entry| self.location(entry, LocationState::Undecided)));
        for (entry, consumers) in self.deliveries.all() {
            if query.matches(Some(entry.message.id()), entry.number) {
                found.push(self.location(entry, LocationState::Delivered(consumers())));
            }
        }
        for (until, taken) in self.delayed.iter() {
            match taken {
                Unlisted::InMemory(entry) if query.matches(Some(entry.message.id()), entry.number) => {
                    found.push(self.location(entry, LocationState::Delayed(until)));
                }
                Unlisted::PagedOut(paged_out) if query.matches(None, paged_out.number) => {
                    found.push(self.paged_out_location(paged_out, LocationState::Delayed(until)));
                }
                Unlisted::InMemory(_) | Unlisted::PagedOut(_) => {}
            }
        }
        for (paged_out, saved, message) in self.ready.iter() {
            let Some(fewer) = left.checked_sub(1) else {
                locations.more = true;
                return;
            };
            *left = fewer;
            if query.matches(message.map(|message| message.id()), paged_out.number) {
                let producer = message.and_then(|message| message.producer().cloned());
                let location = self.paged_out_location(&paged_out, LocationState::Waiting);
                found.push(Location { saved, producer, ..location });
            }
        }
    }
}

fn of(entry: &Entry) -> PagedOut {
    let Entry { deadline, attempts, requeues, sequence, number, answered, .. } = *entry;
    PagedOut { deadline, attempts, requeues, sequence, answered, number, bytes: 0 }
}
