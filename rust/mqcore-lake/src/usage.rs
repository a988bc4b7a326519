//! Objects that the snapshots of a table use. Lists and manifests never change, so each of them is read once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};
use iceberg::spec::{ManifestFile, TableMetadata};

use crate::error::LakeError;
use crate::metadata::{decode_list, decode_manifest};
use crate::store::Store;

/// Number of requests in flight.
const PARALLEL: usize = 16;

/// The objects that the lists and manifests of all snapshots name.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Locations of the manifests in each list.
    lists: HashMap<String, Vec<Arc<str>>>,
    /// Locations of the data files in each manifest.
    manifests: HashMap<Arc<str>, Vec<Arc<str>>>,
}

impl Usage {
    /// Reads what is not known yet of the snapshots of `metadata`, and forgets what none of them uses.
    ///
    /// # Errors
    /// [`LakeError`] if an object is missing or invalid.
    pub(crate) async fn update(&mut self, store: &Store, metadata: &TableMetadata) -> Result<(), LakeError> {
        let current: HashSet<&str> = metadata.snapshots().map(|snapshot| snapshot.manifest_list()).collect();
        self.lists.retain(|list, _| current.contains(list.as_str()));
        let new = current.into_iter().filter(|list| !self.lists.contains_key(*list)).map(str::to_owned);
        let mut read =
            futures_util::stream::iter(new.collect::<Vec<_>>().into_iter().map(|list| async move {
                let bytes = store.read(own(store, &list)?).await?;
                Ok::<_, LakeError>((list, decode_list(&bytes)?))
            }))
            .buffer_unordered(PARALLEL);
        let mut unknown: HashMap<Arc<str>, ManifestFile> = HashMap::new();
        while let Some((list, files)) = read.try_next().await? {
            let mut manifests = Vec::new();
            for file in files {
                let known = self.manifests.get_key_value(file.manifest_path.as_str()).map(|(path, _)| path);
                let known = known
                    .or_else(|| unknown.get_key_value(file.manifest_path.as_str()).map(|(path, _)| path));
                let path: Arc<str> = known.map_or_else(|| file.manifest_path.as_str().into(), Arc::clone);
                manifests.push(Arc::clone(&path));
                if !self.manifests.contains_key(&path) {
                    unknown.insert(path, file);
                }
            }
            self.lists.insert(list, manifests);
        }
        drop(read);
        let mut read = futures_util::stream::iter(unknown.into_iter().map(|(path, file)| async move {
            let manifest = decode_manifest(&file, store.read(own(store, &path)?).await?).await?;
            let entries = manifest.into_parts().0.into_iter().filter(|entry| entry.is_alive());
            Ok::<_, LakeError>((
                path,
                entries.map(|entry| entry.file_path().into()).collect::<Vec<Arc<str>>>(),
            ))
        }))
        .buffer_unordered(PARALLEL);
        while let Some((path, files)) = read.try_next().await? {
            self.manifests.insert(path, files);
        }
        drop(read);
        let used: HashSet<&Arc<str>> = self.lists.values().flatten().collect();
        self.manifests.retain(|path, _| used.contains(path));
        Ok(())
    }

    /// Returns the names of all objects that the current snapshots used at the last update.
    ///
    /// # Errors
    /// [`LakeError::Table`] if one of them is outside of the store.
    pub(crate) fn names(&self, store: &Store) -> Result<HashSet<String>, LakeError> {
        let lists = self.lists.keys().map(String::as_str);
        let manifests = self.manifests.keys().map(AsRef::as_ref);
        let files = self.manifests.values().flatten().map(AsRef::as_ref);
        lists.chain(manifests).chain(files).map(|location| own(store, location).map(str::to_owned)).collect()
    }
}

/// Returns the name of an object of this store.
fn own<'a>(store: &Store, location: &'a str) -> Result<&'a str, LakeError> {
    store.name(location).ok_or_else(|| LakeError::Table {
        location: store.url().to_owned(),
        why: format!("it names {location}, which is elsewhere"),
    })
}
