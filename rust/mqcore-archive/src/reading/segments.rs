//! The notes in the segment files of a shard, read while its broker keeps writing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mqcore_journal::following::{self, FollowedRecord, HEAD_BYTES, RecordWalk, SegmentIdentity};
use mqcore_journal::record::Note;

use super::ReadError;
use crate::manifest::hex;

/// Bytes read from a segment at a time.
const PIECE: usize = 512 * 1024;

/// The segment files of one shard's journal.
#[derive(Debug)]
pub(super) struct Segments {
    directory: PathBuf,
    known: Mutex<Arc<KnownFiles>>,
}

/// The state of the files at the last refresh.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownFiles {
    /// Identity of the journal; `None` without segments.
    pub(super) journal: Option<u64>,
    /// Segments by number.
    pub(super) segments: BTreeMap<u32, Segment>,
    /// Number of the next note.
    pub(super) next_note: u64,
    /// The newest segment in use, and the ends of all others that it lists.
    roster: (u32, BTreeMap<u32, u32>),
}

/// The state of one segment file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    identity: SegmentIdentity,
    /// End of the last readable record, in bytes.
    end: u32,
    /// Whether the segment is complete.
    closed: bool,
    /// Whether it was read up to the end listed by another segment.
    listed: bool,
    /// Smallest and largest note number; `None`: no notes.
    pub(super) notes: Option<(u64, u64)>,
    /// Earliest and latest time of the notes, in milliseconds since the Unix epoch.
    pub(super) times: (u64, u64),
    /// Size of the notes in bytes.
    pub(super) bytes: u64,
}

impl Segment {
    fn new(identity: SegmentIdentity) -> Self {
        let (end, times) = (identity.records_start, (u64::MAX, 0));
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

    /// Reads the changes since the last refresh, and returns the new state.
    pub(super) fn refresh(&self) -> Result<Arc<KnownFiles>, ReadError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next = KnownFiles::clone(&known).refreshed(&self.directory)?;
        *known = Arc::new(next);
        Ok(Arc::clone(&known))
    }

    /// Opens a segment of a journal whose notes can be read without the list in another segment. `None`: the file was removed,
    /// is not a segment, or belongs to another journal, which has replaced this one.
    pub(super) fn open(&self, number: u32, journal: &str) -> Result<Option<Records>, ReadError> {
        let records = Records::open(self.directory.join(following::segment_name(number)), PIECE)?;
        Ok(records.filter(|records| hex(records.identity.journal) == journal))
    }

    /// Calls `show` with the notes of one segment of a journal, up to the end in `known`.
    pub(super) fn each_note(
        &self,
        number: u32,
        journal: &str,
        known: &KnownFiles,
        show: &mut dyn FnMut(Note<'_>),
    ) -> Result<(), ReadError> {
        let Some(mut records) = self.open(number, journal)? else { return Ok(()) };
        if let Some(end) = known.cut_at(number) {
            return each_until(&records.path, records.identity, end, show).map(drop);
        }
        while records.advance_notes(show)? {}
        Ok(())
    }
}

/// A reader for the records of a segment file, in pieces that fit the processor's caches.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    file: File,
    identity: SegmentIdentity,
    /// End of the last readable record, in bytes.
    end: u32,
    /// Bytes to read at a time, unless a record is longer.
    piece: usize,
    wanted: usize,
    bytes: Vec<u8>,
}

impl Records {
    fn open(path: PathBuf, piece: usize) -> Result<Option<Self>, ReadError> {
        let Some(mut file) = found(File::open(&path)).map_err(|source| failed(&path, source))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        read_at(&mut file, 0, HEAD_BYTES, &mut bytes).map_err(|source| failed(&path, source))?;
        let name = path.display().to_string();
        let Some(identity) = following::identity(&name, &bytes).map_err(ReadError::Journal)? else {
            return Ok(None);
        };
        let end = identity.records_start;
        Ok(Some(Self { path, file, identity, end, piece, wanted: piece, bytes }))
    }

    /// The same as [`Records::advance`], for notes only.
    pub(super) fn advance_notes(&mut self, show: &mut dyn FnMut(Note<'_>)) -> Result<bool, ReadError> {
        self.advance(&mut |seen| {
            if let FollowedRecord::Note(note) = seen {
                show(note);
            }
        })
    }

    /// Calls `show` with the records of the next piece. Returns false if nothing more can be read yet.
    fn advance(&mut self, show: &mut dyn FnMut(FollowedRecord<'_>)) -> Result<bool, ReadError> {
        read_at(&mut self.file, self.end.into(), self.wanted, &mut self.bytes)
            .map_err(|source| failed(&self.path, source))?;
        let mut walk = RecordWalk::new(self.identity, self.end, &self.bytes);
        let mut closed = false;
        for seen in &mut walk {
            closed |= seen == FollowedRecord::Closed;
            show(seen);
        }
        let (passed, claimed) = (walk.offset() - self.end, walk.announced_bytes());
        let more = self.bytes.len() == self.wanted && (passed > 0 || claimed > self.wanted);
        self.end = walk.offset();
        self.wanted = claimed.max(self.piece);
        Ok(more && !closed)
    }
}

impl KnownFiles {
    /// Returns the listed end of a segment without a seal, after a crash or damage.
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
        if self.is_of_another_journal(directory, numbers.last().copied())? {
            self = Self::default();
        }
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

    /// Whether the directory now contains another journal, which invalidates the known state.
    fn is_of_another_journal(&self, directory: &Path, newest: Option<u32>) -> Result<bool, ReadError> {
        let Some(newest) = newest else { return Ok(true) };
        let newest = Records::open(directory.join(following::segment_name(newest)), PIECE)?;
        Ok(newest.zip(self.journal).is_some_and(|(newest, known)| newest.identity.journal != known))
    }

    /// Reads the records added to a segment since the last refresh.
    fn look(&mut self, directory: &Path, number: u32) -> Result<(), ReadError> {
        if self.segments.get(&number).is_some_and(|segment| segment.closed || segment.listed) {
            return Ok(());
        }
        let Some(mut records) = Records::open(directory.join(following::segment_name(number)), PIECE)? else {
            self.segments.remove(&number);
            return Ok(());
        };
        let identity = records.identity;
        if identity.segment != number || self.journal.is_some_and(|journal| journal != identity.journal) {
            return Ok(());
        }
        self.journal = Some(identity.journal);
        let mut segment = self.segments.get(&number).copied().unwrap_or_else(|| Segment::new(identity));
        records.end = segment.end;
        let mut began = None;
        let mut take = |seen: FollowedRecord<'_>| match seen {
            FollowedRecord::Note(note) => segment.take(&note),
            FollowedRecord::Began { next_note, others } => began = Some((next_note, others)),
            FollowedRecord::Closed => segment.closed = true,
            FollowedRecord::Other => {}
        };
        while records.advance(&mut take)? {}
        segment.end = records.end;
        if let Some((next_note, others)) = began {
            self.began(number, next_note, others);
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

    /// Reads a segment without a seal again, once another segment lists its end.
    fn look_at_cut(&mut self, directory: &Path, number: u32) -> Result<(), ReadError> {
        let Some(&end) = self.roster.1.get(&number) else { return Ok(()) };
        let Some(segment) = self.segments.get(&number).filter(|segment| !segment.closed && !segment.listed)
        else {
            return Ok(());
        };
        let path = directory.join(following::segment_name(number));
        let mut again = Segment { listed: true, ..Segment::new(segment.identity) };
        if each_until(&path, segment.identity, end, &mut |note| again.take(&note))? {
            self.segments.insert(number, again);
        }
        Ok(())
    }
}

/// Calls `show` with the notes of a segment up to its listed end. Returns false if the file was removed.
fn each_until(
    path: &Path,
    identity: SegmentIdentity,
    end: u32,
    show: &mut dyn FnMut(Note<'_>),
) -> Result<bool, ReadError> {
    let bytes = found(fs::read(path)).map_err(|source| failed(path, source))?;
    if let Some(bytes) = &bytes {
        following::each_until(identity, end, bytes, show);
    }
    Ok(bytes.is_some())
}

fn read_at(file: &mut File, offset: u64, most: usize, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    file.seek(SeekFrom::Start(offset))?;
    file.take(most as u64).read_to_end(into)?;
    Ok(())
}

/// Converts a missing file to `None`: the reader searches for its content elsewhere.
pub(super) fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

pub(super) fn failed(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use mqcore_journal::journal::Journal;
    use mqcore_journal::options::Options;
    use mqcore_journal::storage::FileStorage;
    use tempfile::TempDir;

    use super::*;

    fn write(directory: &Path, identity: u64, segment_bytes: u32, notes: usize) {
        let storage = FileStorage::open(directory).expect("nobody has it");
        let options = Options { segment_bytes, identity, retain_notes_bytes: None, ..Options::default() };
        let mut journal = Journal::open(storage, options, &mut |_, _| {}).expect("a sound disk").0;
        for number in 0..notes {
            journal.note(0, &vec![7; number % 97]).expect("there is space");
            journal.write().expect("a sound disk");
        }
        journal.sync().expect("a sound disk");
    }

    #[test]
    fn notes_are_found_wherever_a_piece_ends() {
        let directory = TempDir::new().expect("a place for temporary files");
        write(directory.path(), 1, 1 << 20, 200);
        let path = directory.path().join(following::segment_name(1));
        for piece in 16..700 {
            let mut records = Records::open(path.clone(), piece).expect("a sound disk").expect("it is there");
            let mut found = Vec::new();
            let mut show = |seen: FollowedRecord<'_>| {
                if let FollowedRecord::Note(note) = seen {
                    found.push(note.payload.len());
                }
            };
            while records.advance(&mut show).expect("a sound disk") {}
            assert_eq!(found, (0..200).map(|number| number % 97).collect::<Vec<_>>(), "pieces of {piece}");
        }
    }

    #[test]
    fn directory_with_a_new_journal_is_read_from_scratch() {
        let root = TempDir::new().expect("a place for temporary files");
        let directory = root.path().join("shard-0");
        fs::create_dir(&directory).expect("a place for temporary files");
        write(&directory, 1, 4096, 300);
        let segments = Segments::new(directory.clone());
        let known = segments.refresh().expect("a sound disk");
        assert!(known.segments.len() > 2 && known.journal == Some(1), "{known:?}");
        fs::remove_dir_all(&directory).expect("it is there");
        assert_eq!(segments.refresh().expect("a sound disk").journal, None);
        for (identity, notes) in [(2, 300), (3, 100)] {
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(&directory).expect("a place for temporary files");
            write(&directory, identity, 4096, notes);
            let known = segments.refresh().expect("a sound disk");
            let largest =
                known.segments.values().filter_map(|segment| segment.notes).map(|(_, last)| last).max();
            assert_eq!(
                (known.journal, largest.map(|last| last + 1)),
                (Some(identity), Some(known.next_note))
            );
        }
    }
}
