//! Where a message is at this moment, found by its id, for people who look for it.

use crate::model::entry::{Entry, Unread};
use crate::model::sighting::{Place, Sighting, Sightings, Sought};
use crate::queue::Queue;
use crate::queue::ready::Taken;
use crate::shard::Broker;

/// Messages of one shard that are looked at, at most: about as many as a shard can look at in 10 ms.
const LOOKED_MAX: usize = 200_000;

impl Broker {
    /// Looks for a message in all queues of this shard. Changes nothing.
    pub fn sightings(&self, sought: &Sought) -> Sightings {
        let mut sightings = Sightings::default();
        let mut left = LOOKED_MAX;
        for queue in self.queues() {
            queue.sight(sought, &mut left, &mut sightings);
            if sightings.more || sightings.found.len() >= sought.max {
                break;
            }
        }
        sightings.found.truncate(sought.max);
        sightings
    }
}

impl Queue {
    fn sighting(&self, entry: &Entry, place: Place) -> Sighting {
        let producer = entry.message.producer().cloned();
        Sighting { producer, saved: entry.saved, ..self.sighting_unread(&of(entry), place) }
    }

    fn sighting_unread(&self, unread: &Unread, place: Place) -> Sighting {
        Sighting {
            queue: (*self.face.address).clone(),
            place,
            attempts: unread.attempts,
            put_backs: unread.put_backs,
            saved: true,
            number: unread.number,
            producer: None,
        }
    }

    fn sight(&self, sought: &Sought, left: &mut usize, sightings: &mut Sightings) {
        let found = &mut sightings.found;
        let undecided = self.undecided().filter(|entry| sought.is_it(Some(entry.message.id()), entry.number));
        found.extend(undecided.map(|entry| self.sighting(entry, Place::Undecided)));
        for (entry, consumers) in self.deliveries.all() {
            if sought.is_it(Some(entry.message.id()), entry.number) {
                found.push(self.sighting(entry, Place::Delivered(consumers())));
            }
        }
        for (until, taken) in self.delayed.iter() {
            match taken {
                Taken::Read(entry) if sought.is_it(Some(entry.message.id()), entry.number) => {
                    found.push(self.sighting(entry, Place::Delayed(until)));
                }
                Taken::Unread(unread) if sought.is_it(None, unread.number) => {
                    found.push(self.sighting_unread(unread, Place::Delayed(until)));
                }
                Taken::Read(_) | Taken::Unread(_) => {}
            }
        }
        for (unread, saved, message) in self.ready.iter() {
            let Some(fewer) = left.checked_sub(1) else {
                sightings.more = true;
                return;
            };
            *left = fewer;
            if sought.is_it(message.map(|message| message.id()), unread.number) {
                let producer = message.and_then(|message| message.producer().cloned());
                let sighting = self.sighting_unread(&unread, Place::Waiting);
                found.push(Sighting { saved, producer, ..sighting });
            }
        }
    }
}

fn of(entry: &Entry) -> Unread {
    let Entry { deadline, attempts, put_backs, sequence, number, answered, .. } = *entry;
    Unread { deadline, attempts, put_backs, sequence, answered, number, bytes: 0 }
}
