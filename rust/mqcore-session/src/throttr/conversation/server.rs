//! Answers about the server and its connections.

use mqcore_broker::model::command::Command;
use mqcore_limiter::limiter::StepRun;
use mqcore_wire::throttr::request::{self, ThrottrRequest};
use mqcore_wire::throttr::{Family, answer};

use super::{STREAMED_BYTES_MAX, ThrottrSession, VERSION};
use crate::throttr::minutes::Tally;
use crate::throttr::peer::Peer;
use crate::throttr::stream::Stream;

impl ThrottrSession {
    pub(super) fn begin(&mut self, stream: Stream, output: &mut Vec<u8>) {
        self.stream = Some(stream);
        // Short answers are complete at once.
        self.go_on(output);
    }

    /// Writes the next piece of the current answer.
    pub(super) fn go_on(&mut self, output: &mut Vec<u8>) {
        let end = output.len() + STREAMED_BYTES_MAX;
        while let Some(stream) = &mut self.stream
            && output.len() < end
        {
            let counted = output.len();
            if !stream.step(&self.directory, &self.terms, self.now, output) {
                self.stream = None;
                output.append(&mut self.behind_stream);
            } else if output.len() == counted {
                // It visited much of the store without output: yield to others.
                break;
            }
        }
    }

    /// A request inside another one: exactly one, complete, and not nested again.
    pub(super) fn event_request(
        &mut self,
        inner: &[u8],
        run: &mut StepRun<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        self.tally(Tally::Event);
        match request::decode(inner, self.terms.dialect, &self.limits) {
            Ok(Some((request, size)))
                if size == inner.len() && !matches!(request, ThrottrRequest::Event { .. }) =>
            {
                answer::status(true, output);
                self.answer(&request, run, commands, output);
            }
            _ => answer::status(false, output),
        }
    }

    pub(super) fn record(&self, peer: &Peer, output: &mut Vec<u8>) {
        let mut record = peer.record();
        if !self.terms.metrics {
            record.numbers = Default::default();
        }
        answer::status(true, output);
        record.write(self.terms.dialect.family, output);
    }

    pub(super) fn info(&mut self, output: &mut Vec<u8>) {
        self.flush_tallies();
        let mut numbers = [0; 52];
        if self.terms.metrics {
            let (total, last) = self.directory.counted(self.now);
            for tally in 0..Tally::ReadBytes as usize {
                (numbers[1 + 2 * tally], numbers[2 + 2 * tally]) = (total[tally], last[tally]);
            }
            let (read, written) = self.directory.bytes();
            (numbers[39], numbers[40]) = (read, last[Tally::ReadBytes as usize]);
            (numbers[41], numbers[42]) = (written, last[Tally::WriteBytes as usize]);
        }
        let totals = self.store().totals();
        let (channels, subscriptions) = self.directory.channel_counts();
        numbers[0] = self.directory.unix(self.now) / 1_000_000_000;
        numbers[43] = totals.keys();
        numbers[44] = totals.counters;
        numbers[45] = totals.buffers;
        numbers[46] = totals.counters * self.terms.dialect.width.bytes() as u64;
        numbers[47] = totals.buffer_bytes;
        numbers[48] = subscriptions;
        numbers[49] = channels;
        numbers[50] = self.directory.running_since();
        numbers[51] = self.directory.peers();
        let with_time = self.terms.metrics || self.terms.dialect.family == Family::V73;
        answer::info(&numbers, VERSION, with_time, output);
    }
}
