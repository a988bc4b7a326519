//! The identity of a member: which replica of which group a data directory belongs to.
//!
//! A replica that lost data must not return under its old id, because it may have voted or acknowledged entries. So a directory
//! says by itself what it is: it gets a random *incarnation* when it is empty. The incarnations of the first nodes identify the
//! group. A node that finds a group which does not know its incarnation has lost its directory, and joins under a new id.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use mqcore_consensus::membership::ReplicaId;
use mqcore_journal::storage::private::create_private_directory;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::small_files;

/// The directory of the group's log, below the data directory.
pub const DIRECTORY: &str = "consensus";
/// The file with the identity, in that directory.
const FILE: &str = "identity.json";
/// Where the files of a replica go that cannot return, below the data directory.
const REPLACED: &str = "replaced";
/// Generations count seconds from here on (2026-01-01), so that no generation is used twice.
const EPOCH_SECONDS: u64 = 1_767_225_600;

/// The state of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberIdentity {
    /// The cluster.
    pub cluster: String,
    /// The node.
    pub node: u32,
    /// Random; distinguishes this directory from an earlier one of the node.
    pub incarnation: u64,
    /// The generation of the replica; `None`: it belongs to no group yet.
    pub generation: Option<u32>,
    /// Its log has had entries. If it has none later, it was lost, and with it what the replica has promised.
    #[serde(default)]
    pub has_log: bool,
    /// The first nodes of the group, and the incarnations of their directories. No other group has the same. Empty: it belongs
    /// to no group yet.
    pub founders: BTreeMap<u32, u64>,
    /// The files are not complete or damaged, and must be copied from another member.
    pub is_copying: bool,
    /// The log has lost something: the replica must not continue, because it may have promised what it does not remember.
    #[serde(default)]
    pub is_log_lost: bool,
    /// It keeps the log, and no files of a broker.
    #[serde(default)]
    pub is_witness: bool,
}

/// Why a directory cannot belong to a member.
#[derive(Debug, thiserror::Error)]
pub enum MemberIdentityError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The identity cannot be read.
    #[error(
        "{path} is damaged ({why}); move the data directory away, and the node gets a copy of the others"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// It belongs to another node.
    #[error(
        "{path} belongs to node {found_node} of cluster {found_cluster:?}, not to node {node} of {cluster:?}; \
         choose another --data-dir, or correct the node's number"
    )]
    Other {
        /// The data directory.
        path: PathBuf,
        /// Its node.
        found_node: u32,
        /// Its cluster.
        found_cluster: String,
        /// The configured node.
        node: u32,
        /// The configured cluster.
        cluster: String,
    },
}

/// Whether a data directory belongs to a node of a cluster. Changes that are made on this disk only would make nodes differ.
#[must_use]
pub fn is_replicated(root: &Path) -> bool {
    match read(&MemberIdentity::directory(root).join(FILE)) {
        Ok(found) => found.is_some_and(|identity| identity.generation.is_some()),
        // A file is there, and says nothing.
        Err(_) => true,
    }
}

impl MemberIdentity {
    /// The path of the group's log and of this file.
    #[must_use]
    pub fn directory(root: &Path) -> PathBuf {
        root.join(DIRECTORY)
    }

    /// Reads the identity of a data directory, or gives one to an empty directory.
    ///
    /// # Errors
    /// [`MemberIdentityError`].
    pub fn open(root: &Path, cluster: &str, node: u32) -> Result<Self, MemberIdentityError> {
        let directory = Self::directory(root);
        let path = directory.join(FILE);
        let found = match read(&path)? {
            Some(found) => found,
            None => {
                create_private_directory(&directory).map_err(io_error(&directory))?;
                return Self::begin(root, cluster, node);
            }
        };
        if found.node != node || found.cluster != cluster {
            return Err(MemberIdentityError::Other {
                path: root.to_path_buf(),
                found_node: found.node,
                found_cluster: found.cluster,
                node,
                cluster: cluster.to_owned(),
            });
        }
        Ok(found)
    }

    /// The identity of an empty directory.
    fn begin(root: &Path, cluster: &str, node: u32) -> Result<Self, MemberIdentityError> {
        let identity = Self {
            cluster: cluster.to_owned(),
            node,
            incarnation: crate::transport::random_u64(),
            generation: None,
            has_log: false,
            founders: BTreeMap::new(),
            is_copying: false,
            is_log_lost: false,
            is_witness: false,
        };
        identity.save(root)?;
        Ok(identity)
    }

    /// Saves the identity; durable at return.
    ///
    /// # Errors
    /// [`MemberIdentityError::Io`].
    pub fn save(&self, root: &Path) -> Result<(), MemberIdentityError> {
        let path = Self::directory(root).join(FILE);
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| MemberIdentityError::Damaged { path: path.clone(), why: error.to_string() })?;
        small_files::write(&path, &text).map_err(|source| MemberIdentityError::Io { path, source })
    }

    /// Moves the files of a replica that cannot return to `replaced/`, and gives the empty directory a new identity.
    ///
    /// # Errors
    /// [`MemberIdentityError::Io`].
    pub fn replace(self, root: &Path) -> Result<Self, MemberIdentityError> {
        let aside = self.make_aside(root)?;
        for entry in fs::read_dir(root).map_err(io_error(root))? {
            let entry = entry.map_err(io_error(root))?;
            let name = entry.file_name();
            // The log of the group is last: until it is moved, a crash leaves an identity that is replaced again.
            if name != REPLACED && name != DIRECTORY && name != "lock" && name != "archive" {
                fs::rename(entry.path(), aside.join(&name)).map_err(io_error(&entry.path()))?;
            }
        }
        self.leave_group(root)
    }

    /// Moves the log of the group to `replaced/`, and gives the directory a new identity. Its files stay: it is then like that of
    /// a broker without a cluster.
    ///
    /// # Errors
    /// [`MemberIdentityError::Io`].
    pub fn leave_group(self, root: &Path) -> Result<Self, MemberIdentityError> {
        let aside = self.make_aside(root)?;
        let directory = Self::directory(root);
        fs::rename(&directory, aside.join(DIRECTORY)).map_err(io_error(&directory))?;
        create_private_directory(&directory).map_err(io_error(&directory))?;
        Self::begin(root, &self.cluster, self.node)
    }

    fn make_aside(&self, root: &Path) -> Result<PathBuf, MemberIdentityError> {
        let aside = root.join(REPLACED).join(format!("{:016x}", self.incarnation));
        create_private_directory(&aside).map_err(io_error(&aside))?;
        Ok(aside)
    }

    /// The id of its replica.
    #[must_use]
    pub fn replica(&self) -> Option<ReplicaId> {
        ReplicaId::from_number(u64::from(self.generation?) << 32 | u64::from(self.node))
    }

    /// The number of the group in messages: replicas of different groups may have the same ids, and must not hear each other.
    #[must_use]
    pub fn group(&self) -> u64 {
        let mut hash = Sha256::new();
        for (node, incarnation) in &self.founders {
            hash.update(node.to_le_bytes());
            hash.update(incarnation.to_le_bytes());
        }
        hash.finalize().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// A generation that the node has not had, if the group knows it under these.
    #[must_use]
    pub fn next_generation(known: impl Iterator<Item = u32>) -> u32 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let seconds = u32::try_from(now.saturating_sub(EPOCH_SECONDS)).unwrap_or(u32::MAX - 1);
        known.max().unwrap_or(0).saturating_add(1).max(seconds)
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> MemberIdentityError {
    let path = path.to_path_buf();
    move |source| MemberIdentityError::Io { path, source }
}

fn read(path: &Path) -> Result<Option<MemberIdentity>, MemberIdentityError> {
    let damaged = |why: String| MemberIdentityError::Damaged { path: path.to_path_buf(), why };
    match small_files::read(path) {
        Ok(None) => Ok(None),
        Ok(Some(text)) => serde_json::from_str(&text).map(Some).map_err(|error| damaged(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(damaged(error.to_string())),
        Err(source) => Err(io_error(path)(source)),
    }
}
