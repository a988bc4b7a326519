//! Adds restore points, and removes old ones.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use uuid::Uuid;

use crate::backup::point::{FilePiece, PointFile, RestorePoint, SCHEMA, kept};
use crate::backup::points;
use crate::backup::upload::{self, Comparison, DataObject, PieceReader};
use crate::error::LakeError;
use crate::store::Store;
use crate::transfer::{TransferError, TransferProgress};

pub use crate::backup::upload::{FileContent, FileSource};

/// Default size of a data object.
const OBJECT_BYTES: usize = 16 << 20;

/// The files of a data directory at one moment. They do not change until the restore point is complete.
#[derive(Debug, Clone)]
pub struct BackupMoment {
    /// When, in Unix milliseconds.
    pub created_ms: u64,
    /// Version of the broker.
    pub version: String,
    /// Number of shards.
    pub shards: usize,
    /// Number of saved messages.
    pub messages: Option<u64>,
    /// Content of the file `format`.
    pub format: String,
    /// All other files.
    pub files: Vec<MomentFile>,
}

/// A file at one moment.
#[derive(Debug, Clone)]
pub struct MomentFile {
    /// Name relative to the data directory, with `/`.
    pub name: String,
    /// Identity of the journal it belongs to.
    pub journal: u64,
    /// Number of bytes that are valid.
    pub bytes: u64,
    /// Length of the copy.
    pub length: u64,
    /// Whether its valid bytes never change. Other files are small, and replaced as a whole.
    pub is_append_only: bool,
}

/// A restore point that contains the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Its number.
    pub number: u64,
    /// Number of compressed bytes that were uploaded; 0 if nothing had changed since the restore point.
    pub uploaded: u64,
}

/// The objects that [`BackupWriter::expire`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// Number of restore points.
    pub points: u64,
    /// Number of data objects.
    pub objects: u64,
}

/// Adds restore points to a store, of which it is the only writer.
#[derive(Debug)]
pub struct BackupWriter {
    store: Store,
    id: String,
    /// A data object is complete when it has this many bytes.
    object_bytes: usize,
    /// Whether the store honors conditions.
    is_probed: bool,
    /// The newest restore point. `None` after an error: it must be read.
    newest: Option<Option<RestorePoint>>,
    /// The last restore point that this writer added.
    own: Option<u64>,
    /// Files of attempts that failed, as far as they were uploaded for the next restore point.
    unfinished: BTreeMap<String, PointFile>,
    /// The number of that restore point.
    unfinished_for: u64,
    /// Pieces that the files of this machine have, of restore points of other writers.
    compared: BTreeSet<(String, u64)>,
    /// Data objects that someone else has removed and that the newest restore point uses.
    missing: BTreeSet<String>,
}

impl BackupWriter {
    /// Creates a writer. Sends no request.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self {
            store,
            id: Uuid::new_v4().simple().to_string(),
            object_bytes: OBJECT_BYTES,
            is_probed: false,
            newest: None,
            own: None,
            unfinished: BTreeMap::new(),
            unfinished_for: 0,
            compared: BTreeSet::new(),
            missing: BTreeSet::new(),
        }
    }

    /// Sets the size in bytes at which a data object is complete. Default 16 MiB.
    #[must_use]
    pub fn object_bytes(self, bytes: usize) -> Self {
        Self { object_bytes: bytes, ..self }
    }

    /// Asks the store a question, to find out whether it answers.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn reach(&self) -> Result<(), LakeError> {
        self.store.exists(&points::name(1)).await.map(drop)
    }

    /// Stores a moment as a new restore point, unless the newest one already contains it.
    ///
    /// `progress` gets the number of bytes that were read and that are new, and two zeros while the first call compares
    /// the files with those of an earlier writer. After an error, the next call continues with what was compared and
    /// uploaded.
    ///
    /// # Errors
    /// - [`TransferError::File`]: a file cannot be read. [`TransferError::Stopped`]: `progress` returned false.
    /// - [`LakeError::TakenOver`]: another writer has added restore points since this one began. Permanent.
    /// - [`LakeError::Unconditional`], [`LakeError::RestorePoint`] and [`LakeError::Store`]. It may then be unknown
    ///   whether the restore point exists; the next call finds out.
    pub async fn add(
        &mut self,
        moment: &BackupMoment,
        source: &dyn FileSource,
        progress: &mut TransferProgress<'_>,
    ) -> Result<Stored, TransferError> {
        // It stays unknown if this call fails.
        let mut newest = match self.newest.take() {
            Some(newest) => newest,
            None => self.read_newest(moment, source, progress).await?,
        };
        for file in newest.iter_mut().flat_map(|newest| &mut newest.files) {
            // Without a piece, those behind it have no place in the file.
            let is_missing = |piece: &FilePiece| self.missing.contains(&piece.object);
            let whole = file.pieces.iter().position(is_missing).unwrap_or(file.pieces.len());
            file.pieces.truncate(whole);
        }
        let number = newest.as_ref().map_or(1, |newest| newest.number + 1);
        if self.unfinished_for != number {
            // A later restore point must not use pieces of an earlier one that was never made.
            (self.unfinished_for, self.unfinished) = (number, BTreeMap::new());
        }
        let before = BTreeMap::from_iter(
            newest.iter().flat_map(|newest| &newest.files).map(|file| (file.name.as_str(), file)),
        );
        let (files, mut uploaded) = self.upload(number, (moment, source), &before, progress).await?;
        if newest.as_ref().is_some_and(|newest| newest.files == files && newest.format == moment.format) {
            self.newest = Some(newest);
            return Ok(Stored { number: number - 1, uploaded: 0 });
        }
        let point = RestorePoint {
            schema: SCHEMA.to_owned(),
            version: moment.version.clone(),
            number,
            writer: self.id.clone(),
            created_ms: moment.created_ms.max(newest.as_ref().map_or(0, |newest| newest.created_ms)),
            shards: moment.shards,
            messages: moment.messages,
            format: moment.format.clone(),
            files,
        };
        let object = point.encode()?;
        uploaded += object.len() as u64;
        // A repeated request finds the object of its first attempt, and one that was thought lost may have arrived.
        if !self.store.create(&points::name(number), object).await? {
            let existing = points::read(&self.store, number).await?;
            if (RestorePoint { created_ms: point.created_ms, ..existing.clone() }) != point {
                return Err(self.conflict(&existing).into());
            }
        }
        self.compared.clear();
        self.missing.clear();
        self.own = Some(number);
        self.newest = Some(Some(point));
        Ok(Stored { number, uploaded })
    }

    /// Reads the newest restore point, which may be that of an earlier run or of a failed call.
    async fn read_newest(
        &mut self,
        moment: &BackupMoment,
        source: &dyn FileSource,
        progress: &mut TransferProgress<'_>,
    ) -> Result<Option<RestorePoint>, TransferError> {
        if !self.is_probed {
            self.store.probe("").await?;
            self.is_probed = true;
        }
        let Some(mut newest) = points::newest(&self.store).await? else { return Ok(None) };
        if newest.writer == self.id {
            self.own = Some(newest.number);
            return Ok(Some(newest));
        }
        if self.own.is_some() {
            return Err(LakeError::TakenOver { url: self.store.url().to_owned() }.into());
        }
        // The files of this machine may have had another past since, as after the restore of an older restore point.
        let files = BTreeMap::from_iter(moment.files.iter().map(|file| (file.name.as_str(), file)));
        for before in &mut newest.files {
            if let Some(file) = files.get(before.name.as_str()).filter(|file| file.journal == before.journal)
            {
                let same = self.same_pieces(before, file, source, progress)?;
                before.pieces.truncate(same);
            }
        }
        Ok(Some(newest))
    }

    /// Counts the pieces, from the first on, whose content a file has. A stop of the broker interrupts it, and pieces of
    /// segments are compared once: it can take longer than another writer needs for the next restore point.
    fn same_pieces(
        &mut self,
        before: &PointFile,
        file: &MomentFile,
        source: &dyn FileSource,
        progress: &mut TransferProgress<'_>,
    ) -> Result<usize, TransferError> {
        let mut comparison = Comparison::new(source.open(&before.name)?);
        for (number, piece) in before.pieces.iter().enumerate() {
            let place = (piece.object.clone(), piece.at);
            if file.is_append_only && self.compared.contains(&place) {
                comparison.skip(piece);
                continue;
            }
            if !progress(0, 0) {
                return Err(TransferError::Stopped);
            }
            if !comparison.is_same(piece)? {
                return Ok(number);
            }
            self.compared.insert(place);
        }
        Ok(before.pieces.len())
    }

    /// Why a restore point exists that this call did not make.
    fn conflict(&self, existing: &RestorePoint) -> LakeError {
        match existing.writer != self.id && self.own.is_some() {
            true => LakeError::TakenOver { url: self.store.url().to_owned() },
            false => LakeError::RestorePointExists { number: existing.number },
        }
    }

    /// Uploads what is new, and returns the files with all their pieces.
    async fn upload(
        &mut self,
        number: u64,
        (moment, source): (&BackupMoment, &dyn FileSource),
        before: &BTreeMap<&str, &PointFile>,
        progress: &mut TransferProgress<'_>,
    ) -> Result<(Vec<PointFile>, u64), TransferError> {
        let mut files: Vec<PointFile> = Vec::new();
        for file in &moment.files {
            let known = [self.unfinished.get(&file.name), before.get(file.name.as_str()).copied()];
            let known = known.into_iter().flatten().find(|known| known.journal == file.journal);
            let mut pieces = known.map_or_else(Vec::new, |known| known.pieces.clone());
            pieces.truncate(match file.is_append_only {
                true => kept(&pieces, file.bytes),
                false => unchanged(&pieces, file, source)?,
            });
            let (name, journal) = (file.name.clone(), file.journal);
            files.push(PointFile { name, journal, bytes: file.bytes, length: file.length, pieces });
        }
        let total = files.iter().map(missing_bytes).sum();
        let (mut done, mut uploaded) = (0, 0);
        let mut object = DataObject::new(number);
        // Files whose pieces are in the object that is not uploaded yet.
        let mut touched: Vec<usize> = Vec::new();
        for (place, file) in moment.files.iter().enumerate() {
            let mut left = missing_bytes(&files[place]);
            if left == 0 {
                continue;
            }
            let mut reader = PieceReader::new(source.open(&file.name)?, file.bytes - left, file.bytes)?;
            while let Some(bytes) = reader.next()? {
                left -= bytes.len() as u64;
                done += bytes.len() as u64;
                files[place].pieces.push(object.add(&bytes)?);
                if touched.last() != Some(&place) {
                    touched.push(place);
                }
                if object.bytes() >= self.object_bytes {
                    let complete = std::mem::replace(&mut object, DataObject::new(number));
                    uploaded += complete.upload(&self.store).await?;
                    for place in touched.drain(..) {
                        self.unfinished.insert(files[place].name.clone(), files[place].clone());
                    }
                }
                if !progress(done, total) {
                    return Err(TransferError::Stopped);
                }
            }
            debug_assert_eq!(left, 0, "the reader ends at the end of the file");
        }
        uploaded += object.upload(&self.store).await?;
        Ok((files, uploaded))
    }

    /// Removes restore points that are not needed to restore any moment of the last `keep_ms` before `now_ms`, and data
    /// objects that no other restore point uses. The newest restore point stays.
    ///
    /// The newest restore point bounds `now_ms`: a clock that is ahead must not remove what is still needed.
    ///
    /// # Errors
    /// [`LakeError::Store`] and [`LakeError::RestorePoint`]. A later call removes the rest.
    pub async fn expire(&self, now_ms: u64, keep_ms: u64) -> Result<Expired, LakeError> {
        let mut objects = upload::objects(&self.store).await?;
        let numbers = points::numbers(&self.store).await?;
        let Some(&newest) = numbers.last() else { return Ok(Expired::default()) };
        let newest_ms = points::read(&self.store, newest).await?.created_ms;
        let since_ms = now_ms.min(newest_ms).saturating_sub(keep_ms);
        let Some(oldest) = points::find(&self.store, &numbers, since_ms).await? else {
            return Ok(Expired::default());
        };
        let used = BTreeSet::from_iter(
            oldest.files.iter().flat_map(|file| &file.pieces).map(|piece| piece.object.as_str()),
        );
        let expired: Vec<String> = numbers
            .iter()
            .take_while(|number| **number < oldest.number)
            .map(|&number| points::name(number))
            .collect();
        // Restore points go first: one without its data would be of no use.
        self.store.delete(&expired).await?;
        let is_obsolete = |name: &String| {
            upload::point_of(name).is_some_and(|point| point <= oldest.number)
                && !used.contains(name.as_str())
        };
        objects.retain(is_obsolete);
        self.store.delete(&objects).await?;
        Ok(Expired { points: expired.len() as u64, objects: objects.len() as u64 })
    }

    /// Finds data objects of the newest restore point that someone else has removed. The next restore point will contain
    /// their data again. Returns how many there are that no earlier call has found.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn find_missing(&mut self) -> Result<usize, LakeError> {
        // The newest restore point was complete before this list, so the list has its objects.
        let existing = BTreeSet::from_iter(upload::objects(&self.store).await?);
        let pieces =
            self.newest.iter().flatten().flat_map(|newest| &newest.files).flat_map(|file| &file.pieces);
        let missing = pieces.map(|piece| &piece.object).filter(|object| !existing.contains(*object));
        let before = self.missing.len();
        self.missing.extend(missing.cloned());
        Ok(self.missing.len() - before)
    }
}

fn missing_bytes(file: &PointFile) -> u64 {
    file.bytes - file.pieces.iter().map(|piece| piece.bytes).sum::<u64>()
}

/// How many pieces a file keeps that is replaced as a whole: all or none.
fn unchanged(pieces: &[FilePiece], file: &MomentFile, source: &dyn FileSource) -> io::Result<usize> {
    if pieces.iter().map(|piece| piece.bytes).sum::<u64>() != file.bytes {
        return Ok(0);
    }
    let mut comparison = Comparison::new(source.open(&file.name)?);
    for piece in pieces {
        if !comparison.is_same(piece)? {
            return Ok(0);
        }
    }
    Ok(pieces.len())
}
