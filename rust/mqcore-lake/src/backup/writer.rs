//! Adds restore points, and removes old ones.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use uuid::Uuid;

use crate::backup::point::{FilePiece, PointFile, RestorePoint, SCHEMA, kept};
use crate::backup::points;
use crate::backup::upload::{self, DataObject, PieceReader, matching};
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

/// Objects that [`BackupWriter::expire`] removed or missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// Number of removed restore points.
    pub points: u64,
    /// Number of removed data objects.
    pub objects: u64,
    /// Number of data objects that the newest restore point uses and that someone else has removed.
    pub missing: u64,
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
    /// `progress` gets the number of bytes that were read and that are new. After an error, the next call continues with
    /// what was uploaded.
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
        let newest = match self.newest.take() {
            Some(newest) => newest,
            None => self.read_newest(moment, source).await?,
        };
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
            if existing != point {
                return Err(self.conflict(&existing).into());
            }
        }
        self.own = Some(number);
        self.newest = Some(Some(point));
        Ok(Stored { number, uploaded })
    }

    /// Reads the newest restore point, which may be that of an earlier run or of a failed call.
    async fn read_newest(
        &mut self,
        moment: &BackupMoment,
        source: &dyn FileSource,
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
        let journals =
            BTreeMap::from_iter(moment.files.iter().map(|file| (file.name.as_str(), file.journal)));
        for before in &mut newest.files {
            if journals.get(before.name.as_str()) == Some(&before.journal) {
                before.pieces.truncate(matching(&mut *source.open(&before.name)?, &before.pieces)?);
            }
        }
        Ok(Some(newest))
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

    /// Removes restore points that are not needed to restore any moment from `since_ms` on, and data objects that no
    /// other restore point uses. The newest restore point stays.
    ///
    /// If data objects of the newest restore point are missing, the next one will contain them again.
    ///
    /// # Errors
    /// [`LakeError::Store`] and [`LakeError::RestorePoint`]. A later call removes the rest.
    pub async fn expire(&mut self, since_ms: u64) -> Result<Expired, LakeError> {
        // The newest restore point was complete before this list, so the list has its objects.
        let mut objects = upload::objects(&self.store).await?;
        let missing = self.give_up_missing(&objects);
        let numbers = points::numbers(&self.store).await?;
        let Some(oldest) = points::find(&self.store, &numbers, since_ms).await? else {
            return Ok(Expired { missing, ..Expired::default() });
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
        Ok(Expired { points: expired.len() as u64, objects: objects.len() as u64, missing })
    }

    /// Forgets pieces whose data objects do not exist, so that they are uploaded again. Returns the number of these objects.
    fn give_up_missing(&mut self, existing: &[String]) -> u64 {
        let existing: BTreeSet<&str> = existing.iter().map(String::as_str).collect();
        let mut missing = BTreeSet::new();
        for file in self.newest.iter_mut().flatten().flat_map(|newest| &mut newest.files) {
            let is_missing = |piece: &FilePiece| !existing.contains(piece.object.as_str());
            missing.extend(
                file.pieces.iter().filter(|piece| is_missing(piece)).map(|piece| piece.object.clone()),
            );
            let whole = file.pieces.iter().position(is_missing).unwrap_or(file.pieces.len());
            file.pieces.truncate(whole);
        }
        missing.len() as u64
    }
}

fn missing_bytes(file: &PointFile) -> u64 {
    file.bytes - file.pieces.iter().map(|piece| piece.bytes).sum::<u64>()
}

/// How many pieces a file keeps that is replaced as a whole: all or none.
fn unchanged(pieces: &[FilePiece], file: &MomentFile, source: &dyn FileSource) -> io::Result<usize> {
    let is_same = pieces.iter().map(|piece| piece.bytes).sum::<u64>() == file.bytes
        && matching(&mut *source.open(&file.name)?, pieces)? == pieces.len();
    Ok(if is_same { pieces.len() } else { 0 })
}
