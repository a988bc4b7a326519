//! Accepts the losses of a stopped broker's journals, so that its shards take messages again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqcore_journal::identity::{JournalIdentity, identify};
use mqcore_journal::inspection::Inspection;
use mqcore_journal::options::Options;
use mqcore_journal::storage::ReadOnlyStorage;

pub use crate::storage::loss::{Loss, LossCause};

use crate::storage::data_dir::{DataDir, DataDirError, JournalError, SideJournal, shard_name};

/// A data directory locked against brokers and inspections until this is dropped.
#[derive(Debug)]
pub struct LossAcceptance {
    path: PathBuf,
    directory: DataDir,
}

/// A journal of the data directory.
enum Part {
    Shard(usize),
    Side(SideJournal),
}

impl Part {
    /// Its directory.
    fn name(&self) -> String {
        match self {
            Self::Shard(shard) => shard_name(*shard),
            Self::Side(side) => side.as_str().to_owned(),
        }
    }

    /// The shard number in its segments.
    fn number(&self) -> u32 {
        match self {
            Self::Shard(shard) => *shard as u32,
            Self::Side(side) => side.shard(),
        }
    }

    fn failed(&self, source: JournalError) -> DataDirError {
        match self {
            Self::Shard(shard) => DataDirError::Journal { shard: *shard, source },
            Self::Side(side) => side.failed(source),
        }
    }
}

impl LossAcceptance {
    /// Opens an existing data directory that no process uses.
    ///
    /// # Errors
    /// [`DataDirError::Missing`], [`DataDirError::Running`], [`DataDirError::Format`], [`DataDirError::Version`],
    /// [`DataDirError::Inconsistent`] and [`DataDirError::Io`].
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        Ok(Self { path: path.to_path_buf(), directory: DataDir::open_stopped(path)? })
    }

    /// The number of shards of the directory.
    pub fn shards(&self) -> usize {
        self.directory.shards()
    }

    /// All journals that a data directory can have.
    fn parts(&self) -> Vec<Part> {
        let sides = SideJournal::ALL.into_iter().map(Part::Side);
        (0..self.shards()).map(Part::Shard).chain(sides).collect()
    }

    /// Accepts the losses of one shard, or those of all journals, and returns them. Losses that no start has found yet are
    /// included. `progress` receives the number of the journal, the bytes done and the total of that journal; if it returns
    /// false, nothing is accepted.
    ///
    /// # Errors
    /// [`DataDirError::Journal`], [`DataDirError::Limits`], [`DataDirError::Schedules`] and [`DataDirError::Nodes`] for a
    /// journal of a later version, and [`DataDirError::Io`].
    pub fn accept(
        &self,
        shard: Option<usize>,
        progress: &mut dyn FnMut(usize, u64, u64) -> bool,
    ) -> Result<Vec<Loss>, DataDirError> {
        let mut identities = BTreeMap::new();
        let mut is_stopped = false;
        for (place, part) in self.parts().into_iter().enumerate() {
            let name = part.name();
            if shard.is_some_and(|shard| name != shard_name(shard)) {
                continue;
            }
            let path = self.path.join(&name);
            if !path.is_dir() {
                continue;
            }
            let io = |source| DataDirError::Io { path: path.clone(), source };
            let storage = ReadOnlyStorage::open(&path).map_err(io)?;
            let expected_identity = self.directory.identity_of(&name);
            if let JournalIdentity::Known(identity) = identify(&storage, expected_identity).map_err(io)? {
                identities.insert(name.clone(), identity);
            }
            let options = Options { shard: part.number(), expected_identity, ..Options::default() };
            let mut report = |done, total| is_stopped |= !progress(place, done, total);
            let inspection =
                Inspection::new(storage, options, &mut report).map_err(|source| part.failed(source))?;
            self.directory
                .found(&name, &inspection.recovered().report)
                .map_err(|source| part.failed(source))?;
        }
        if is_stopped {
            return Ok(Vec::new());
        }
        let wanted = shard.map(shard_name);
        let selects = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        let mut accepted = Vec::new();
        self.directory.change(|manifest| accepted = manifest.accept(&selects, &identities))?;
        Ok(accepted)
    }
}
