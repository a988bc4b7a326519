//! One Iceberg table: its current snapshot in memory, and commits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use iceberg::spec::{
    DataFile, FormatVersion, MAIN_BRANCH, ManifestEntryRef, ManifestFile, Schema, Snapshot, TableMetadata,
    TableMetadataBuilder, Transform,
};
use mqcore_archive::tables::Table;
use parquet::schema::types::SchemaDescriptor;
use uuid::Uuid;

use crate::catalog::{Catalog, NextState, Versioned};
use crate::change::{Change, METADATA_KEPT, named_snapshots, summary, with_settings};
use crate::error::LakeError;
use crate::files::{LiveFile, WrittenFile};
use crate::location::LakeLocation;
use crate::metadata::{ManifestLine, decode_list, decode_manifest, encode_list, encode_manifest};
use crate::schema::{
    Buckets, TablePartition, iceberg_schema, missing_columns, parquet_schema, partition_spec, sort_order,
};
use crate::store::Store;
use crate::usage::Usage;

/// Number of requests in flight while metadata is read.
const PARALLEL: usize = 16;
/// Number of manifests above which a commit merges the small ones.
const MANIFESTS_MAX: usize = 100;
/// Size in bytes of a manifest that no commit merges any more.
const MANIFEST_BYTES: i64 = 4 * 1024 * 1024;
/// Age in milliseconds up to which all snapshots remain.
const RECENT_MS: i64 = 3_600_000;
/// Interval in milliseconds of which one older snapshot remains.
const THINNED_MS: i64 = 300_000;
/// Beginning of the names of all objects that mqcore creates besides metadata files.
const OURS: &str = "mqcore-";

/// A manifest of the current snapshot.
#[derive(Debug, Clone)]
struct KnownManifest {
    file: ManifestFile,
    /// Files of the current snapshot.
    live: Vec<ManifestEntryRef>,
}

/// An Iceberg table in the state of its newest metadata.
#[derive(Debug)]
pub(crate) struct IcebergTable {
    store: Store,
    catalog: Catalog,
    table: Table,
    current: Versioned,
    manifests: Vec<KnownManifest>,
    live: Vec<LiveFile>,
    parquet: SchemaDescriptor,
    buckets: Buckets,
    usage: Usage,
    /// Part of the names of new objects.
    epoch: u64,
}

impl IcebergTable {
    /// Opens a table; `None`: it does not exist.
    pub(crate) async fn open(location: &LakeLocation, table: Table) -> Result<Option<Self>, LakeError> {
        let (store, catalog) = (location.store(), location.catalog(table.as_str()));
        let Some(current) = catalog.load().await? else { return Ok(None) };
        let manifests = read_snapshot(store, &current.metadata).await?;
        let opened = Self::with(store.clone(), catalog, table, current, manifests);
        opened.map(Some)
    }

    /// Creates a table.
    ///
    /// # Errors
    /// [`LakeError::Conflict`] if it exists.
    pub(crate) async fn create(
        location: &LakeLocation,
        table: Table,
        buckets: u32,
        properties: HashMap<String, String>,
    ) -> Result<Self, LakeError> {
        let (store, catalog) = (location.store(), location.catalog(table.as_str()));
        let schema = iceberg_schema(table)?;
        let (spec, order) = (partition_spec(&schema, buckets)?, sort_order(&schema)?);
        let mut settings = HashMap::from([
            ("write.metadata.previous-versions-max".to_owned(), METADATA_KEPT.to_string()),
            ("write.metadata.delete-after-commit.enabled".to_owned(), "true".to_owned()),
            ("write.format.default".to_owned(), "parquet".to_owned()),
            ("write.parquet.compression-codec".to_owned(), "zstd".to_owned()),
        ]);
        settings.extend(properties);
        let location = store.location(table.as_str());
        let built = TableMetadataBuilder::new(schema, spec, order, location, FormatVersion::V2, settings)?;
        let built = built.build()?;
        let next = NextState { metadata: built.metadata, updates: built.changes };
        let current = catalog.commit(None, next).await?;
        Self::with(store.clone(), catalog, table, current, Vec::new())
    }

    fn with(
        store: Store,
        catalog: Catalog,
        table: Table,
        current: Versioned,
        manifests: Vec<KnownManifest>,
    ) -> Result<Self, LakeError> {
        let schema = current.metadata.current_schema();
        let buckets = buckets_of(&current.metadata)?;
        // A table of an earlier version may lack columns until the next change of its schema.
        let parquet = match missing_columns(table, schema, current.metadata.last_column_id())?.is_empty() {
            true => parquet_schema(table, schema)?,
            false => parquet_schema(table, &iceberg_schema(table)?)?,
        };
        let live = live_files(&manifests, schema);
        Ok(Self {
            store,
            catalog,
            table,
            current,
            manifests,
            live,
            parquet,
            buckets,
            usage: Usage::default(),
            epoch: 0,
        })
    }

    pub(crate) fn property(&self, name: &str) -> Option<&str> {
        self.current.metadata.properties().get(name).map(String::as_str)
    }

    pub(crate) fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    pub(crate) fn table(&self) -> Table {
        self.table
    }

    pub(crate) fn location(&self) -> &str {
        self.current.metadata.location()
    }

    /// Data files of the current snapshot.
    pub(crate) fn files(&self) -> &[LiveFile] {
        &self.live
    }

    /// Whether no one has committed since.
    pub(crate) async fn is_current(&self) -> Result<bool, LakeError> {
        self.catalog.is_current(&self.current).await
    }

    pub(crate) fn parquet(&self) -> &SchemaDescriptor {
        &self.parquet
    }

    pub(crate) fn bucket(&self, queue: &str) -> Result<Option<u32>, LakeError> {
        self.buckets.of(queue)
    }

    fn schema(&self) -> &Schema {
        self.current.metadata.current_schema()
    }

    /// Uploads a data file. It belongs to the table only after a commit.
    pub(crate) async fn upload(
        &self,
        file: &WrittenFile,
        partition: TablePartition,
    ) -> Result<DataFile, LakeError> {
        let metadata = &self.current.metadata;
        let path = metadata
            .default_partition_spec()
            .partition_to_path(&partition.values(), Arc::clone(metadata.current_schema()));
        let name = format!("{}/data/{path}/{}.parquet", self.table.as_str(), self.new_name());
        self.store.put(&name, file.bytes.clone()).await?;
        file.describe(
            self.store.location(&name),
            partition,
            self.schema(),
            metadata.default_partition_spec_id(),
            i32::try_from(metadata.default_sort_order_id()).unwrap_or(0),
        )
    }

    /// Reads a data file.
    pub(crate) async fn download(&self, location: &str) -> Result<Bytes, LakeError> {
        self.store.read(self.name_of(location)?).await
    }

    fn name_of<'a>(&self, location: &'a str) -> Result<&'a str, LakeError> {
        self.store.name(location).ok_or_else(|| LakeError::Table {
            location: self.location().to_owned(),
            why: format!("it names {location}, which is outside of {}", self.store.url()),
        })
    }

    fn new_name(&self) -> String {
        format!("{OURS}{:08}-{}", self.epoch, Uuid::new_v4().simple())
    }

    /// Adds columns that an earlier version of mqcore did not write.
    pub(crate) async fn evolve(&mut self) -> Result<(), LakeError> {
        let metadata = &self.current.metadata;
        let missing = missing_columns(self.table, metadata.current_schema(), metadata.last_column_id())?;
        if missing.is_empty() {
            return Ok(());
        }
        let schema = Schema::clone(metadata.current_schema()).into_builder().with_fields(missing).build()?;
        let builder = self.builder().add_current_schema(schema)?;
        self.publish(builder, None).await?;
        self.parquet = parquet_schema(self.table, self.schema())?;
        Ok(())
    }

    fn builder(&self) -> TableMetadataBuilder {
        self.current.metadata.clone().into_builder(Some(self.current.location.clone()))
    }

    /// Commits a change. After an error, open the table again.
    ///
    /// # Errors
    /// [`LakeError::Conflict`] if another commit came first, and [`LakeError::Store`].
    pub(crate) async fn commit(&mut self, change: Change, now_ms: u64) -> Result<(), LakeError> {
        if change.added.is_empty() && change.removed.is_empty() && !self.catalog.takes_updates() {
            return self.commit_settings(change, now_ms).await;
        }
        let properties = change.properties.iter().cloned().collect();
        let builder = self.builder().set_properties(properties)?.remove_snapshots(&change.expired);
        let metadata = &self.current.metadata;
        let id = new_snapshot_id(metadata);
        let sequence = metadata.next_sequence_number();
        let summary = summary(&change, &self.live);
        let manifests = self.next_manifests(change, id).await?;
        let list_name = format!("{}/metadata/{}-list.avro", self.table.as_str(), self.new_name());
        let list_location = self.store.location(&list_name);
        let files: Vec<_> = manifests.iter().map(|manifest| manifest.file.clone()).collect();
        let parent = metadata.current_snapshot_id();
        let list = encode_list(&list_location, id, parent, sequence, &files).await?;
        self.store.put(&list_name, list.clone()).await?;
        // A clock that was set back must not make the table unusable.
        let time = i64::try_from(now_ms).unwrap_or(i64::MAX).max(metadata.last_updated_ms());
        let snapshot = Snapshot::builder()
            .with_snapshot_id(id)
            .with_parent_snapshot_id(parent)
            .with_sequence_number(sequence)
            .with_timestamp_ms(time)
            .with_manifest_list(list_location)
            .with_summary(summary)
            .with_schema_id(metadata.current_schema_id())
            .build();
        let builder = builder.set_branch_snapshot(snapshot, MAIN_BRANCH)?;
        // The list contains the sequence numbers that the commit assigns.
        let manifests = decode_list(&list)?
            .into_iter()
            .zip(manifests)
            .map(|(file, known)| KnownManifest { file, live: known.live })
            .collect();
        self.publish(builder, Some(manifests)).await?;
        self.reload_new(id).await
    }

    /// Commits a change without data files.
    async fn commit_settings(&mut self, change: Change, now_ms: u64) -> Result<(), LakeError> {
        let current = &self.current;
        let (metadata, outdated) =
            with_settings(&current.metadata, current.location.clone(), change, now_ms)?;
        let outdated: Vec<_> =
            outdated.iter().filter_map(|location| self.store.name(location).map(str::to_owned)).collect();
        self.install(NextState { metadata, updates: Vec::new() }, None, &outdated).await
    }

    /// Entries of new manifests inherit their sequence numbers from the list, so they are read again.
    async fn reload_new(&mut self, snapshot: i64) -> Result<(), LakeError> {
        let store = &self.store;
        for known in self.manifests.iter_mut().filter(|known| known.file.added_snapshot_id == snapshot) {
            known.live = read_manifest(store, &known.file).await?;
        }
        self.live = live_files(&self.manifests, self.current.metadata.current_schema());
        Ok(())
    }

    /// Writes the manifests of the next snapshot.
    async fn next_manifests(&self, change: Change, id: i64) -> Result<Vec<KnownManifest>, LakeError> {
        let mut next = Vec::new();
        let merge = self.manifests.len() >= MANIFESTS_MAX;
        let mut merged = Vec::new();
        for known in &self.manifests {
            let stale = known.live.iter().any(|entry| change.removed.contains(entry.file_path()));
            let default = known.file.partition_spec_id == self.current.metadata.default_partition_spec_id();
            if default && (stale || merge && known.file.manifest_length < MANIFEST_BYTES) {
                merged.extend(known.live.iter().map(
                    |entry| match change.removed.contains(entry.file_path()) {
                        true => ManifestLine::Removed(Arc::clone(entry)),
                        false => ManifestLine::Existing(Arc::clone(entry)),
                    },
                ));
            } else if !known.live.is_empty() {
                next.push(known.clone());
            }
        }
        merged.extend(change.added.into_iter().map(|data| ManifestLine::Added(Box::new(data))));
        if !merged.is_empty() {
            next.push(self.write_manifest(id, merged).await?);
        }
        Ok(next)
    }

    async fn write_manifest(&self, id: i64, lines: Vec<ManifestLine>) -> Result<KnownManifest, LakeError> {
        let metadata = &self.current.metadata;
        let name = format!("{}/metadata/{}.avro", self.table.as_str(), self.new_name());
        let spec = metadata.default_partition_spec().as_ref().clone();
        let schema = Arc::clone(metadata.current_schema());
        let encoded = encode_manifest(&self.store.location(&name), id, schema, spec, lines).await?;
        self.store.put(&name, encoded.bytes).await?;
        Ok(KnownManifest { file: encoded.file, live: Vec::new() })
    }

    /// Makes the built metadata the current one, and deletes metadata files that it does not list any more.
    async fn publish(
        &mut self,
        builder: TableMetadataBuilder,
        manifests: Option<Vec<KnownManifest>>,
    ) -> Result<(), LakeError> {
        let built = builder.build()?;
        let old: Vec<_> = built
            .expired_metadata_logs
            .iter()
            .filter_map(|log| self.store.name(&log.metadata_file).map(str::to_owned))
            .filter(|name| self.catalog.version_of(name).is_some())
            .collect();
        self.install(NextState { metadata: built.metadata, updates: built.changes }, manifests, &old).await
    }

    async fn install(
        &mut self,
        next: NextState,
        manifests: Option<Vec<KnownManifest>>,
        outdated: &[String],
    ) -> Result<(), LakeError> {
        self.current = self.catalog.commit(Some(&self.current), next).await?;
        if let Some(manifests) = manifests {
            self.manifests = manifests;
        }
        self.delete_quietly(outdated).await;
        Ok(())
    }

    /// Deletes objects that nothing refers to. The next start removes what remains after an error.
    async fn delete_quietly(&self, names: &[String]) {
        if let Err(error) = self.store.delete(names).await {
            tracing::warn!(%error, "cannot delete outdated files of the archive; the next start tries again");
        }
    }

    /// Removes snapshots that are older than `before_ms` and those that can be [thinned out](thinned), except the current one
    /// and those that a tag or a branch names, and the files that only they use.
    pub(crate) async fn expire(&mut self, before_ms: u64, now_ms: u64) -> Result<u64, LakeError> {
        let metadata = &self.current.metadata;
        let named = named_snapshots(metadata, &self.current.location)?;
        let before = i64::try_from(before_ms).unwrap_or(i64::MAX);
        let times: BTreeMap<(i64, i64), i64> = metadata
            .snapshots()
            .map(|snapshot| ((snapshot.timestamp_ms(), snapshot.sequence_number()), snapshot.snapshot_id()))
            .collect();
        let thinned = thinned(&times, i64::try_from(now_ms).unwrap_or(i64::MAX));
        let expired: Vec<i64> = times
            .into_iter()
            .filter(|((time, _), id)| (*time < before || thinned.contains(id)) && !named.contains(id))
            .map(|(_, id)| id)
            .collect();
        if expired.is_empty() {
            return Ok(0);
        }
        let all = self.used().await?;
        let count = expired.len() as u64;
        self.commit(Change { expired, ..Change::default() }, now_ms).await?;
        let kept = self.used().await?;
        let unused: Vec<String> = all.difference(&kept).cloned().collect();
        self.delete_quietly(&unused).await;
        Ok(count)
    }

    /// Returns the names of all objects that the snapshots use.
    async fn used(&mut self) -> Result<HashSet<String>, LakeError> {
        self.usage.update(&self.store, &self.current.metadata).await?;
        self.usage.names(&self.store)
    }

    /// Deletes what interrupted commits of earlier epochs have left. Objects of other programs stay.
    ///
    /// The table must have been committed to in this epoch, because a delayed commit of an earlier one could otherwise still
    /// make use of these objects.
    pub(crate) async fn remove_orphans(&mut self) -> Result<u64, LakeError> {
        let used = self.used().await?;
        let logged: HashSet<&str> = self
            .current
            .metadata
            .metadata_log()
            .iter()
            .filter_map(|log| self.store.name(&log.metadata_file))
            .collect();
        let mut orphans = Vec::new();
        for object in self.store.list(&format!("{}/", self.table.as_str())).await? {
            let file = object.name.rsplit('/').next().unwrap_or_default();
            let epoch = file.strip_prefix(OURS).and_then(|rest| rest.get(..8)?.parse::<u64>().ok());
            let ours = epoch.is_some_and(|epoch| epoch < self.epoch) && !used.contains(&object.name);
            let old = self.catalog.version_of(&object.name).is_some_and(|version| {
                version < self.current.version && !logged.contains(object.name.as_str())
            });
            if ours || old {
                orphans.push(object.name);
            }
        }
        self.store.delete(&orphans).await?;
        Ok(orphans.len() as u64)
    }
}

/// Reads the manifests of the current snapshot.
async fn read_snapshot(store: &Store, metadata: &TableMetadata) -> Result<Vec<KnownManifest>, LakeError> {
    let Some(snapshot) = metadata.current_snapshot() else { return Ok(Vec::new()) };
    let name = store.name(snapshot.manifest_list()).ok_or_else(|| LakeError::Table {
        location: metadata.location().to_owned(),
        why: format!("its snapshot is at {}, outside of {}", snapshot.manifest_list(), store.url()),
    })?;
    let files = decode_list(&store.read(name).await?)?;
    let read = files.into_iter().map(|file| async move {
        let live = read_manifest(store, &file).await?;
        Ok::<_, LakeError>(KnownManifest { file, live })
    });
    futures_util::stream::iter(read).buffered(PARALLEL).try_collect().await
}

/// Returns the entries of a manifest whose files belong to its snapshot.
async fn read_manifest(store: &Store, file: &ManifestFile) -> Result<Vec<ManifestEntryRef>, LakeError> {
    let name = store.name(&file.manifest_path).ok_or_else(|| LakeError::Table {
        location: store.url().to_owned(),
        why: format!("the manifest {} is elsewhere", file.manifest_path),
    })?;
    let manifest = decode_manifest(file, store.read(name).await?).await?;
    Ok(manifest.into_parts().0.into_iter().filter(|entry| entry.is_alive()).collect())
}

fn live_files(manifests: &[KnownManifest], schema: &Schema) -> Vec<LiveFile> {
    let entries = manifests.iter().flat_map(|known| &known.live);
    entries.map(|entry| LiveFile::new(entry.data_file.clone(), schema)).collect()
}

fn buckets_of(metadata: &TableMetadata) -> Result<Buckets, LakeError> {
    let fields = metadata.default_partition_spec().fields();
    match fields {
        [day, bucket] if day.name == "time_day" && bucket.name == "queue_bucket" => match bucket.transform {
            Transform::Bucket(count) => Buckets::new(count),
            _ => Err(foreign_partitions(metadata)),
        },
        _ => Err(foreign_partitions(metadata)),
    }
}

fn foreign_partitions(metadata: &TableMetadata) -> LakeError {
    LakeError::Table {
        location: metadata.location().to_owned(),
        why: "another program has changed its partitions".to_owned(),
    }
}

/// Returns snapshots, by time, of which a later one of the same interval remains. Recent ones are not thinned out, because
/// readers may be using them.
///
/// Each commit writes the list of all snapshots. With a commit every second, it would otherwise be 40 MB long.
fn thinned(times: &BTreeMap<(i64, i64), i64>, now_ms: i64) -> HashSet<i64> {
    let interval = |time: i64| time / THINNED_MS;
    let pairs = times.iter().zip(times.keys().skip(1));
    let thinned = pairs.filter(|(((time, _), _), (next, _))| {
        *next < now_ms - RECENT_MS && interval(*time) == interval(*next)
    });
    thinned.map(|((_, id), _)| *id).collect()
}

/// Returns a random positive id that the table does not use.
fn new_snapshot_id(metadata: &TableMetadata) -> i64 {
    loop {
        let id = (Uuid::new_v4().as_u64_pair().0 >> 1).cast_signed();
        if metadata.snapshot_by_id(id).is_none() {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_snapshot_of_each_interval_remains_except_recent_ones() {
        let times = (0..2 * 3600).map(|second| ((second * 1000, second), second)).collect();
        let thinned = thinned(&times, 2 * RECENT_MS);
        let kept: Vec<i64> = (0..3600).filter(|id| !thinned.contains(id)).collect();
        let last_of_each: Vec<i64> = (1..=12).map(|interval| interval * 300 - 1).collect();
        assert_eq!(kept, last_of_each);
        assert!((3600..7200).all(|id| !thinned.contains(&id)));
    }
}
