//! Everything outside the broker: the time, the agenda, the network, the oracle and the trace.

use std::fmt;

use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;
use mqcore_testkit::Random;

use crate::agenda::{Agenda, Due};
use crate::network::{Network, Side};
use crate::oracle::Oracle;
use crate::oracle::schedules::RunDelivery;
use crate::time::{BrokerClock, Micros};
use crate::trace::Trace;

/// Everything outside the broker, and the time.
pub(crate) struct Scene {
    pub(crate) now: Micros,
    /// The clock of this life of the broker.
    pub(crate) clock: BrokerClock,
    /// By how many seconds the clock of the system was set forward since the run began.
    pub(crate) system_seconds: i64,
    pub(crate) agenda: Agenda,
    pub(crate) network: Network,
    pub(crate) oracle: Oracle,
    trace: Trace,
    disk_random: Random,
    sync_micros: Micros,
    /// A connection has more to do than one run of its task.
    pub(crate) wake_again: bool,
    /// Connections that the broker has closed.
    pub(crate) hung_up: Vec<ConnectionId>,
    /// Connections whose client has read something, so that the broker can send more.
    pub(crate) freed: Vec<ConnectionId>,
}

impl Scene {
    pub(crate) fn new(oracle: Oracle, random: &mut Random, verbose: bool) -> Self {
        Self {
            now: 0,
            clock: BrokerClock::jumped(0),
            system_seconds: 0,
            agenda: Agenda::default(),
            network: Network::new(random.number()),
            oracle,
            trace: Trace::new(verbose),
            sync_micros: [100, 1_000, 8_000][random.index(3)],
            disk_random: Random::new(random.number()),
            wake_again: false,
            hung_up: Vec::new(),
            freed: Vec::new(),
        }
    }

    pub(crate) fn into_trace(self) -> Trace {
        self.trace
    }

    /// The broker's clock.
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.clock.timestamp_of(self.now)
    }

    /// The clock of the system in milliseconds since the Unix epoch.
    pub(crate) fn system_ms(&self) -> u64 {
        BrokerClock::jumped(self.system_seconds).timestamp_of(self.now).0
    }

    /// The broker's clock in nanoseconds.
    pub(crate) fn nanos(&self) -> Nanos {
        self.clock.nanos_of(self.now)
    }

    /// A worker receives a run of a schedule. Returns the number of its message. `None`: there is no such schedule.
    pub(crate) fn run_delivered(&mut self, run: RunDelivery) -> Option<u32> {
        let RunDelivery { schedule, due_ms, fence, .. } = run;
        self.note(format_args!("run {fence} of schedule {schedule}, due at {due_ms}"));
        let (now, system_ms) = (self.now, self.system_ms());
        self.oracle.run_delivered(run, now, system_ms)
    }

    pub(crate) fn note(&mut self, event: fmt::Arguments<'_>) {
        self.trace.note(self.now, event);
    }

    /// Sends bytes on a connection.
    pub(crate) fn send(&mut self, id: ConnectionId, from: Side, bytes: &[u8]) {
        self.trace.note(self.now, format_args!("connection {}: {from:?} sends {} bytes", id.0, bytes.len()));
        self.trace.bytes(bytes);
        for (at, piece) in self.network.send(id, from, bytes, self.now) {
            self.agenda.add(at, Due::Arrival(id, from.other(), piece));
        }
    }

    /// Closes one direction of a connection.
    pub(crate) fn finish(&mut self, id: ConnectionId, from: Side) {
        if let Some(at) = self.network.finish(id, from, self.now) {
            self.agenda.add(at, Due::End(id, from.other()));
        }
    }

    /// How long the next sync takes.
    pub(crate) fn sync_micros(&mut self) -> Micros {
        let slow = if self.disk_random.one_in(20) { self.disk_random.below(60_000) } else { 0 };
        self.sync_micros / 2 + self.disk_random.below(self.sync_micros) + slow
    }
}
