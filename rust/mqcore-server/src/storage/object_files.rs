//! Files on object storage, for backups: blocking calls around [`mqcore_lake::transfer`].

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use mqcore_journal::storage::private::private_options;
use mqcore_lake::store::Store;
use mqcore_lake::transfer::{self, TransferProgress};

pub use mqcore_lake::transfer::TransferError;

/// The objects below a URL. Credentials and settings come from the environment variables of the vendors.
#[derive(Debug)]
pub struct ObjectFiles {
    store: Store,
    runtime: tokio::runtime::Runtime,
}

impl ObjectFiles {
    /// Opens the store. Sends no request.
    ///
    /// # Errors
    /// The URL or a setting is invalid, or the system has no resources left.
    pub fn open(url: &str) -> Result<Self, TransferError> {
        let store = Store::open(url, &BTreeMap::new(), &BTreeMap::new())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { store, runtime })
    }

    /// Sends a file as a new object.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn send(
        &self,
        name: &str,
        path: &Path,
        progress: &mut TransferProgress<'_>,
    ) -> Result<u64, TransferError> {
        let mut file = File::open(path)?;
        let total = file.metadata()?.len();
        self.runtime.block_on(transfer::send_file(&self.store, name, (&mut file, total), progress))
    }

    /// Receives an object into a new file.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn receive(
        &self,
        name: &str,
        path: &Path,
        progress: &mut TransferProgress<'_>,
    ) -> Result<u64, TransferError> {
        let mut file = private_options().write(true).create_new(true).open(path)?;
        self.runtime.block_on(transfer::receive_file(&self.store, name, &mut file, progress))
    }

    /// The names of all objects, in order.
    ///
    /// # Errors
    /// [`TransferError::Store`].
    pub fn names(&self) -> Result<Vec<String>, TransferError> {
        let found = self.runtime.block_on(self.store.list(""))?;
        let mut names: Vec<String> = found.into_iter().map(|found| found.name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes an object. Does nothing if there is none of this name.
    ///
    /// # Errors
    /// [`TransferError::Store`].
    pub fn delete(&self, name: &str) -> Result<(), TransferError> {
        Ok(self.runtime.block_on(self.store.delete(&[name.to_owned()]))?)
    }
}
