//! Reads an archive: the newest manifest, and the rows of the files that it names.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use bytes::Bytes;
use mqcore_archive::archive::Archive;
use mqcore_archive::manifest::FileEntry;
use mqcore_journal::storage::MemoryStorage;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// The rows of one file.
pub fn batches(bytes: Vec<u8>) -> Vec<RecordBatch> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).expect("it is Parquet");
    reader.build().expect("its columns are known").map(|batch| batch.expect("it is whole")).collect()
}

/// Every file that the manifest names: it is there, it is whole, and it holds what the manifest says.
pub fn files(archive: &Archive<MemoryStorage>) -> Vec<(FileEntry, Vec<RecordBatch>)> {
    let disk = archive.storage().files();
    let read = |entry: &FileEntry| {
        let bytes = disk.get(&entry.path).unwrap_or_else(|| panic!("{} is not there", entry.path)).clone();
        assert_eq!(bytes.len() as u64, entry.bytes);
        let batches = batches(bytes);
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>() as u64, entry.rows);
        (entry.clone(), batches)
    };
    archive.manifest().files.iter().map(read).collect()
}

pub fn long(batch: &RecordBatch, column: &str, row: usize) -> i64 {
    batch.column_by_name(column).expect("there is such a column").as_primitive::<Int64Type>().value(row)
}

pub fn int(batch: &RecordBatch, column: &str, row: usize) -> i32 {
    batch.column_by_name(column).expect("there is such a column").as_primitive::<Int32Type>().value(row)
}

pub fn text(batch: &RecordBatch, column: &str, row: usize) -> String {
    let column = batch.column_by_name(column).expect("there is such a column");
    if column.is_null(row) { String::new() } else { column.as_string::<i32>().value(row).to_owned() }
}

/// Gaps by the number of their note: how many steps each says are missing. No note is there twice.
pub fn gaps(archive: &Archive<MemoryStorage>) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for (_, batches) in files(archive) {
        for batch in batches {
            for row in 0..batch.num_rows() {
                let (note, missing) = (long(&batch, "note", row), long(&batch, "missing", row));
                let before = found.insert(note as u64, missing as u64);
                assert_eq!(before, None, "note {note} is archived twice");
            }
        }
    }
    found
}
