//! Accepts the losses of a stopped broker's journals, so that its shards take messages again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqcore_journal::identity::{JournalIdentity, identify};
use mqcore_journal::inspection::Inspection;
use mqcore_journal::options::Options;
use mqcore_journal::storage::ReadOnlyStorage;

pub use crate::storage::loss::{Loss, LossCause};

use crate::storage::data_dir::{DataDir, DataDirError, NODES, SideJournal, shard_name};
use crate::storage::manifest::{Manifest, ManifestError};

/// A data directory locked against brokers and inspections until this is dropped.
#[derive(Debug)]
pub struct LossAcceptance {
    path: PathBuf,
    directory: DataDir,
}

impl LossAcceptance {
    /// Opens an existing data directory that no process uses.
    ///
    /// # Errors
    /// [`DataDirError::Missing`], [`DataDirError::Running`], [`DataDirError::Format`], [`DataDirError::Version`],
    /// [`DataDirError::Inconsistent`] and [`DataDirError::Io`].
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        if !path.is_dir() {
            return Err(DataDirError::Missing { path: path.to_path_buf(), missing: path.to_path_buf() });
        }
        if let Err(error @ ManifestError::Missing) = Manifest::read(path) {
            return Err(error.at(path));
        }
        let directory = DataDir::open(path, 1).map_err(|error| match error {
            DataDirError::Locked { path } => DataDirError::Running { path },
            other => other,
        })?;
        Ok(Self { path: path.to_path_buf(), directory })
    }

    /// The number of shards of the directory.
    pub fn shards(&self) -> usize {
        self.directory.shards()
    }

    /// Accepts the losses of one shard, or those of all journals, and returns them. Losses that no start has found yet are
    /// included. `progress` receives the number of the journal, the bytes done and the total of that journal; if it returns
    /// false, nothing is accepted.
    ///
    /// # Errors
    /// [`DataDirError::Journal`] for a journal of a later version, and [`DataDirError::Io`].
    pub fn accept(
        &self,
        shard: Option<usize>,
        progress: &mut dyn FnMut(usize, u64, u64) -> bool,
    ) -> Result<Vec<Loss>, DataDirError> {
        let shards = (0..self.shards()).map(|shard| (shard_name(shard), shard as u32));
        let sides = SideJournal::ALL.into_iter().map(|side| (side.as_str().to_owned(), side.shard()));
        let mut identities = BTreeMap::new();
        let mut is_stopped = false;
        for (place, (name, number)) in shards.chain(sides).enumerate() {
            if shard.is_some_and(|shard| name != shard_name(shard)) {
                continue;
            }
            let path = self.path.join(&name);
            if !path.is_dir() {
                continue;
            }
            let io = |source| DataDirError::Io { path: path.clone(), source };
            let storage = ReadOnlyStorage::open(&path).map_err(io)?;
            if let JournalIdentity::Known(identity) = identify(&storage).map_err(io)? {
                identities.insert(name.clone(), identity);
            }
            let options = Options { shard: number, ..Options::default() };
            let mut report = |done, total| is_stopped |= !progress(place, done, total);
            let inspection = Inspection::new(storage, options, &mut report)
                .map_err(|source| DataDirError::Journal { shard: place, source })?;
            self.directory
                .found(&name, &inspection.recovered().report)
                .map_err(|source| DataDirError::Journal { shard: place, source })?;
        }
        let nodes = self.directory.nodes();
        if let Ok(Ok(JournalIdentity::Known(identity))) =
            ReadOnlyStorage::open(&nodes).map(|storage| identify(&storage))
        {
            identities.insert(NODES.to_owned(), identity);
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
