//! Which notes stand in which segment file of a shard, while its broker goes on writing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mqcore_journal::following::{self, HEAD_BYTES, Identity, Seen, Walk};
use mqcore_journal::journal::Note;

use super::ReadError;

/// What is read at a time of a segment that grows, in bytes.
const PIECE: usize = 1 << 20;

/// The files of one shard's journal.
#[derive(Debug)]
pub(super) struct Segments {
    directory: PathBuf,
    known: Mutex<Arc<Known>>,
}

/// What the files said when they were looked at last.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// The journal's identity; `None` as long as there is no segment.
    pub(super) journal: Option<u64>,
    /// By number.
    pub(super) segments: BTreeMap<u32, Segment>,
    /// No note has this number yet.
    pub(super) next_note: u64,
    /// The newest segment that is in use, and where each of the others ends.
    roster: (u32, BTreeMap<u32, u32>),
}

/// One segment file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    identity: Identity,
    /// Behind the last readable record, in bytes.
    end: u32,
    /// Nothing can follow any more.
    closed: bool,
    /// Another segment says where it ends, and it was read as that says.
    listed: bool,
    /// The smallest and the largest number of its notes; `None`: it has none.
    pub(super) notes: Option<(u64, u64)>,
    /// The earliest and the latest time of them, Unix milliseconds.
    pub(super) times: (u64, u64),
    /// What they take, in bytes.
    pub(super) bytes: u64,
}

impl Segment {
    fn new(identity: Identity) -> Self {
        let (end, times) = (HEAD_BYTES as u32, (u64::MAX, 0));
        Self { identity, end, closed: false, listed: false, notes: None, times, bytes: 0 }
    }

    fn take(&mut self, note: &Note<'_>) {
        let (number, time) = (note.number, note.time_ms);
        self.notes =
            Some(self.notes.map_or((number, number), |(low, high)| (low.min(number), high.max(number))));
        self.times = (self.times.0.min(time), self.times.1.max(time));
        self.bytes += note.payload.len() as u64;
    }
}

impl Segments {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, known: Mutex::default() }
    }

    /// Looks at what has changed since the last time, and says what there is.
    pub(super) fn refresh(&self) -> Result<Arc<Known>, ReadError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Known::clone(&known).refreshed(&self.directory)?;
        *known = Arc::new(next);
        Ok(Arc::clone(&known))
    }

    /// Shows the notes of one segment, as far as they are readable without the word of another segment, unless `known` has that.
    /// False: the file is gone.
    pub(super) fn each_note(
        &self,
        number: u32,
        known: Option<&Known>,
        show: &mut dyn FnMut(Note<'_>),
    ) -> Result<bool, ReadError> {
        let path = self.directory.join(following::segment_name(number));
        let Some(bytes) = found(fs::read(&path)).map_err(|source| failed(&path, source))? else {
            return Ok(false);
        };
        let Some(identity) = identity(&path, &bytes)? else { return Ok(true) };
        if let Some(end) = known.and_then(|known| known.cut_at(number)) {
            following::each_until(identity, end, &bytes, show);
            return Ok(true);
        }
        let records = bytes.get(HEAD_BYTES..).unwrap_or_default();
        for seen in Walk::new(identity, HEAD_BYTES as u32, records) {
            if let Seen::Note(note) = seen {
                show(note);
            }
        }
        Ok(true)
    }
}

impl Known {
    /// Where a segment ends that did not say so, because of a crash or of damage.
    fn cut_at(&self, number: u32) -> Option<u32> {
        let cut = self.segments.get(&number).is_some_and(|segment| segment.listed);
        self.roster.1.get(&number).copied().filter(|_| cut)
    }

    fn refreshed(mut self, directory: &Path) -> Result<Self, ReadError> {
        let names = match found(fs::read_dir(directory)).map_err(|source| failed(directory, source))? {
            Some(entries) => {
                let entries: io::Result<Vec<_>> = entries.collect();
                entries.map_err(|source| failed(directory, source))?
            }
            None => Vec::new(),
        };
        let numbers = names.iter().filter_map(|entry| following::segment_number(entry.file_name().to_str()?));
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        self.segments.retain(|number, _| numbers.binary_search(number).is_ok());
        for &number in &numbers {
            self.look(directory, number)?;
        }
        for number in numbers {
            self.look_at_cut(directory, number)?;
        }
        let largest =
            self.segments.values().filter_map(|segment| segment.notes).map(|(_, last)| last + 1).max();
        self.next_note = self.next_note.max(largest.unwrap_or(0));
        Ok(self)
    }

    /// Reads what a segment has more than last time.
    fn look(&mut self, directory: &Path, number: u32) -> Result<(), ReadError> {
        if self.segments.get(&number).is_some_and(|segment| segment.closed || segment.listed) {
            return Ok(());
        }
        let path = directory.join(following::segment_name(number));
        let Some(mut file) = found(File::open(&path)).map_err(|source| failed(&path, source))? else {
            self.segments.remove(&number);
            return Ok(());
        };
        let mut segment = match self.segments.get(&number) {
            Some(segment) => *segment,
            None => {
                let head = read_at(&mut file, 0, HEAD_BYTES).map_err(|source| failed(&path, source))?;
                let Some(identity) = identity(&path, &head)? else { return Ok(()) };
                if identity.segment != number
                    || self.journal.is_some_and(|journal| journal != identity.journal)
                {
                    return Ok(());
                }
                self.journal = Some(identity.journal);
                Segment::new(identity)
            }
        };
        let mut wanted = PIECE;
        loop {
            let bytes =
                read_at(&mut file, segment.end.into(), wanted).map_err(|source| failed(&path, source))?;
            let mut walk = Walk::new(segment.identity, segment.end, &bytes);
            for seen in &mut walk {
                match seen {
                    Seen::Note(note) => segment.take(&note),
                    Seen::Began { next_note, others } => self.began(number, next_note, others),
                    Seen::Closed => segment.closed = true,
                    Seen::Other => {}
                }
            }
            let (advanced, claimed) = (walk.offset() > segment.end, walk.claimed());
            segment.end = walk.offset();
            // A record that is longer than what was read, or the next piece.
            let longer = claimed > wanted && bytes.len() == wanted;
            if segment.closed || claimed == 0 || !(advanced || longer) {
                break;
            }
            wanted = claimed.max(PIECE);
        }
        self.segments.insert(number, segment);
        Ok(())
    }

    fn began(&mut self, number: u32, next_note: u64, others: Vec<(u32, u32)>) {
        self.next_note = self.next_note.max(next_note);
        if number >= self.roster.0 {
            self.roster = (number, others.into_iter().collect());
        }
    }

    /// Reads a segment again that ended without a word, now that another one says where.
    fn look_at_cut(&mut self, directory: &Path, number: u32) -> Result<(), ReadError> {
        let Some(&end) = self.roster.1.get(&number) else { return Ok(()) };
        let Some(segment) = self.segments.get(&number).filter(|segment| !segment.closed && !segment.listed)
        else {
            return Ok(());
        };
        let path = directory.join(following::segment_name(number));
        let Some(bytes) = found(fs::read(&path)).map_err(|source| failed(&path, source))? else {
            return Ok(());
        };
        let mut again = Segment { listed: true, ..Segment::new(segment.identity) };
        following::each_until(segment.identity, end, &bytes, &mut |note| again.take(&note));
        self.segments.insert(number, again);
        Ok(())
    }
}

fn identity(path: &Path, head: &[u8]) -> Result<Option<Identity>, ReadError> {
    let head = head.get(..HEAD_BYTES).unwrap_or(head);
    following::identity(&path.display().to_string(), head).map_err(ReadError::Journal)
}

fn read_at(file: &mut File, offset: u64, most: usize) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::with_capacity(most.min(PIECE));
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file that went meanwhile is no error: whoever reads looks where its content went.
pub(super) fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

pub(super) fn failed(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io { path: path.to_path_buf(), source }
}
