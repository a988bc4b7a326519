//! Reads the tables with the readers' side of the crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use mqcore_archive::manifest::Manifest;
use mqcore_archive::reading::source::ArchiveSource as _;
use mqcore_lake::reading::LakeArchive;
use mqcore_lake::store::Store;
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// The archive's place in a store.
pub(crate) fn place(objects: impl ObjectStore) -> Store {
    Store::new(Arc::new(objects), Path::from("warehouse/mq"), "s3://bucket/warehouse/mq")
}

/// The list of files.
pub(crate) fn manifest(store: &Store) -> Manifest {
    let archive = LakeArchive::new(store.clone()).expect("a thread");
    archive.manifest().expect("the tables can be read").expect("there are tables")
}

/// The notes of a shard in the table of steps, and what they say. No note is there twice.
pub(crate) fn notes(store: &Store, shard: u32) -> BTreeMap<u64, u64> {
    let archive = LakeArchive::new(store.clone()).expect("a thread");
    let mut found = BTreeMap::new();
    let manifest = archive.manifest().expect("the tables can be read").expect("there are tables");
    for file in manifest.files.iter().filter(|file| file.shard == shard) {
        let opened = archive.open(file).expect("the store answers").expect("every listed file exists");
        let reader = ParquetRecordBatchReaderBuilder::try_new(opened).expect("it is Parquet");
        let mut rows = 0;
        for batch in reader.build().expect("its columns are known") {
            let batch = batch.expect("it is whole");
            rows += batch.num_rows() as u64;
            let long =
                |name: &str| batch.column_by_name(name).expect(name).as_primitive::<Int64Type>().clone();
            for (note, tag) in long("note").values().iter().zip(long("missing").values()) {
                let before = found.insert(note.cast_unsigned(), tag.cast_unsigned());
                assert_eq!(before, None, "note {note} is in the table twice");
                assert!(
                    (file.min_note..=file.max_note).contains(&note.cast_unsigned()),
                    "the bounds are wrong"
                );
            }
        }
        assert_eq!(rows, file.rows);
    }
    found
}
