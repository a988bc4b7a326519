//! Counts of requests and bytes.

use super::ThrottrSession;
use crate::throttr::minutes::{TALLIES, Tally};
use crate::throttr::peer::Counted;

impl ThrottrSession {
    #[inline]
    pub(super) fn count_written(&mut self, bytes: usize) {
        if self.terms.metrics {
            self.peer.add(Counted::WriteBytes, bytes as u64);
        }
    }

    #[inline]
    pub(super) fn tally(&mut self, tally: Tally) {
        if self.terms.metrics {
            self.tallies[tally as usize] += 1;
        }
    }

    #[inline]
    pub(super) fn count_refusal(&mut self, refused: bool) {
        if refused {
            self.tally(Tally::Refused);
        }
    }

    #[inline]
    pub(super) fn count_request(&mut self, tally: Tally, counted: Counted) {
        if self.terms.metrics {
            self.tallies[tally as usize] += 1;
            self.peer.add(counted, 1);
        }
    }

    /// Adds the counts to the directory.
    pub(super) fn flush_tallies(&mut self) {
        if !self.terms.metrics {
            return;
        }
        let read = self.peer.get(Counted::ReadBytes) - self.reported_read;
        let written = self.peer.get(Counted::WriteBytes) - self.reported_written;
        if read == 0 && written == 0 {
            return;
        }
        self.reported_read += read;
        self.reported_written += written;
        self.tallies[Tally::ReadBytes as usize] = read;
        self.tallies[Tally::WriteBytes as usize] = written;
        self.directory.count(self.connection, &self.tallies, (read, written), self.now);
        *self.tallies = [0; TALLIES];
    }
}
