//! Where a message is at this moment, found by its id, for people who look for it.

use crate::model::entry::{Entry, PagedOut};
use crate::model::location::{Location, LocationState, Locations, MessageQuery};
use crate::queue::Queue;
use crate::queue::ready::Taken;
use crate::shard::entities::Entities;

/// Messages of one shard that are looked at, at most: about as many as a shard can look at in 10 ms.
const LOOKED_MAX: usize = 200_000;

impl Entities {
    /// Looks for a message in all queues of this shard. Changes nothing.
    pub(crate) fn locations(&self, sought: &MessageQuery) -> Locations {
        let mut locations = Locations::default();
        let mut left = LOOKED_MAX;
        for queue in self.queues() {
            queue.locate_in(sought, &mut left, &mut locations);
            if locations.more || locations.found.len() >= sought.max {
                break;
            }
        }
        locations.found.truncate(sought.max);
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

    fn locate_in(&self, sought: &MessageQuery, left: &mut usize, locations: &mut Locations) {
        let found = &mut locations.found;
        let undecided =
            self.undecided().filter(|entry| sought.matches(Some(entry.message.id()), entry.number));
        found.extend(undecided.map(|entry| self.location(entry, LocationState::Undecided)));
        for (entry, consumers) in self.deliveries.all() {
            if sought.matches(Some(entry.message.id()), entry.number) {
                found.push(self.location(entry, LocationState::Delivered(consumers())));
            }
        }
        for (until, taken) in self.delayed.iter() {
            match taken {
                Taken::InMemory(entry) if sought.matches(Some(entry.message.id()), entry.number) => {
                    found.push(self.location(entry, LocationState::Delayed(until)));
                }
                Taken::PagedOut(paged_out) if sought.matches(None, paged_out.number) => {
                    found.push(self.paged_out_location(paged_out, LocationState::Delayed(until)));
                }
                Taken::InMemory(_) | Taken::PagedOut(_) => {}
            }
        }
        for (paged_out, saved, message) in self.ready.iter() {
            let Some(fewer) = left.checked_sub(1) else {
                locations.more = true;
                return;
            };
            *left = fewer;
            if sought.matches(message.map(|message| message.id()), paged_out.number) {
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
