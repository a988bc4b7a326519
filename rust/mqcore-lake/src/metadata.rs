//! Iceberg's manifests and manifest lists, encoded and decoded in memory.
//!
//! The library reads and writes files; here these are buffers, so that one place alone talks to the object store.

use bytes::Bytes;
use iceberg::io::FileIO;
use iceberg::spec::{
    FormatVersion, Manifest, ManifestEntryRef, ManifestFile, ManifestList, ManifestListWriter,
    ManifestWriterBuilder, PartitionSpec, SchemaRef,
};

use crate::error::LakeError;

/// A manifest, with its place in the object store.
#[derive(Debug)]
pub(crate) struct EncodedManifest {
    pub(crate) file: ManifestFile,
    pub(crate) bytes: Bytes,
}

/// A file in a manifest, and what the snapshot does to it.
pub(crate) enum ManifestLine {
    /// This snapshot adds it.
    Added(Box<iceberg::spec::DataFile>),
    /// It was added before, and stays.
    Existing(ManifestEntryRef),
    /// This snapshot removes it.
    Removed(ManifestEntryRef),
}

/// Encodes a manifest that will be stored at `location`.
pub(crate) async fn encode_manifest(
    location: &str,
    snapshot: i64,
    schema: SchemaRef,
    spec: PartitionSpec,
    lines: Vec<ManifestLine>,
) -> Result<EncodedManifest, LakeError> {
    let memory = FileIO::new_with_memory();
    let output = memory.new_output(location)?;
    let mut writer = ManifestWriterBuilder::new(output, Some(snapshot), schema, spec).build_v2_data();
    for line in lines {
        match line {
            ManifestLine::Added(data) => writer.add_file(*data, -1)?,
            ManifestLine::Existing(entry) => writer.add_existing_file(
                entry.data_file.clone(),
                entry.snapshot_id.unwrap_or(snapshot),
                entry.sequence_number.unwrap_or(0),
                entry.file_sequence_number.or(Some(0)),
            )?,
            ManifestLine::Removed(entry) => writer.add_delete_file(
                entry.data_file.clone(),
                entry.sequence_number.unwrap_or(0),
                entry.file_sequence_number.or(Some(0)),
            )?,
        }
    }
    let file = writer.write_manifest_file().await?;
    let bytes = memory.new_input(location)?.read().await?;
    Ok(EncodedManifest { file, bytes })
}

/// Decodes a manifest. Values that entries inherit from the manifest list are filled in.
pub(crate) async fn decode_manifest(file: &ManifestFile, bytes: Bytes) -> Result<Manifest, LakeError> {
    let memory = FileIO::new_with_memory();
    memory.new_output(&file.manifest_path)?.write(bytes).await?;
    Ok(file.load_manifest(&memory).await?)
}

/// Encodes the list of a snapshot's manifests. Returns it with the sequence numbers that it assigns.
pub(crate) async fn encode_list(
    location: &str,
    snapshot: i64,
    parent: Option<i64>,
    sequence: i64,
    manifests: &[ManifestFile],
) -> Result<Bytes, LakeError> {
    let memory = FileIO::new_with_memory();
    let writer = memory.new_output(location)?.writer().await?;
    let mut list = ManifestListWriter::v2(writer, snapshot, parent, sequence);
    list.add_manifests(manifests.iter().cloned())?;
    list.close().await?;
    Ok(memory.new_input(location)?.read().await?)
}

/// Decodes the list of a snapshot's manifests.
pub(crate) fn decode_list(bytes: &[u8]) -> Result<Vec<ManifestFile>, LakeError> {
    Ok(ManifestList::parse_with_version(bytes, FormatVersion::V2)?.consume_entries().into_iter().collect())
}
