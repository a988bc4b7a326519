//! Which notes stand in which segment file of a shard, while its broker goes on writing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mqcore_journal::following::{self, FollowedRecord, HEAD_BYTES, RecordWalk, SegmentIdentity};
use mqcore_journal::record::Note;

use super::ReadError;

/// What is read of a segment at a time, in bytes.
const PIECE: usize = 512 * 1024;

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
    identity: SegmentIdentity,
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
    fn new(identity: SegmentIdentity) -> Self {
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

    /// Opens a segment whose notes are readable without the word of another segment. `None`: the file is gone, or is no
    /// segment's.
    pub(super) fn open(&self, number: u32) -> Result<Option<Records>, ReadError> {
        Records::open(self.directory.join(following::segment_name(number)), PIECE)
    }

    /// Shows the notes of one segment, as far as `known` says that it reaches.
    pub(super) fn each_note(
        &self,
        number: u32,
        known: &Known,
        show: &mut dyn FnMut(Note<'_>),
    ) -> Result<(), ReadError> {
        let Some(mut records) = self.open(number)? else { return Ok(()) };
        if let Some(end) = known.cut_at(number) {
            return each_until(&records.path, records.identity, end, show).map(drop);
        }
        while records.advance_notes(show)? {}
        Ok(())
    }
}

/// The records of a segment file, in pieces that stay in the processor's caches.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    file: File,
    identity: SegmentIdentity,
    /// Behind the last readable record, in bytes.
    end: u32,
    /// What is read at a time, in bytes, unless a record is longer.
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
        Ok(Some(Self { path, file, identity, end: HEAD_BYTES as u32, piece, wanted: piece, bytes }))
    }

    /// As [`Records::advance`], but shows notes only.
    pub(super) fn advance_notes(&mut self, show: &mut dyn FnMut(Note<'_>)) -> Result<bool, ReadError> {
        self.advance(&mut |seen| {
            if let FollowedRecord::Note(note) = seen {
                show(note);
            }
        })
    }

    /// Shows what the next piece of the file has. False: no more of it is readable by now.
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

    /// Whether the directory has been given to a new journal since it was looked at last: nothing known counts then.
    fn is_of_another_journal(&self, directory: &Path, newest: Option<u32>) -> Result<bool, ReadError> {
        let Some(newest) = newest else { return Ok(true) };
        let newest = Records::open(directory.join(following::segment_name(newest)), PIECE)?;
        Ok(newest.zip(self.journal).is_some_and(|(newest, known)| newest.identity.journal != known))
    }

    /// Reads what a segment has more than last time.
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

    /// Reads a segment again that ended without a word, now that another one says where.
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

/// Shows the notes of a segment of which another one knows where it ends. False: the file is gone.
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
    fn every_note_is_found_wherever_a_piece_of_the_file_ends() {
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
    fn a_directory_that_got_a_new_journal_is_looked_at_anew() {
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
