//! Small files of one shard and partition, merged into large ones.
//!
//! Each file is sorted by queue, and rounds follow each other, so that a merge takes the rows of each queue from the files in
//! the order of their notes. It reads the files batch by batch, and never holds all their rows in memory.

use std::collections::{BTreeMap, HashSet};

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, StringArray};
use bytes::Bytes;
use mqcore_archive::archive::ArchiveError;
use mqcore_archive::conforming::conform;
use mqcore_archive::partition::Partition;
use mqcore_archive::tables::Table;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use crate::change::Change;
use crate::error::LakeError;
use crate::files::{FileWriter, LiveFile, WrittenFile};
use crate::lake::Lake;
use crate::schema::TablePartition;
use crate::table::IcebergTable;

/// Number of small files that are merged immediately.
const FILES: usize = 8;
/// Number of rows that are read from each file at a time.
const BATCH_ROWS: usize = 2048;

/// The result of one merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Number of files before.
    pub before: u64,
    /// Number of files after.
    pub after: u64,
    /// Number of rows in them.
    pub rows: u64,
}

impl Lake {
    /// Merges the small files of one shard and partition, if there are enough of them, or if none was added for a while.
    /// Call it again until it returns `None`. Files that a merge would not make fewer stay as they are.
    ///
    /// # Errors
    /// [`LakeError`]; open the archive again after an error. [`ArchiveError::Interrupted`] once `stop` returns true.
    pub async fn compact(
        &mut self,
        now_ms: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Compacted>, LakeError> {
        for index in 0..self.tables.len() {
            let Some((partition, files, outputs)) = self.merged(index, now_ms, stop).await? else { continue };
            let table = &mut self.tables[index];
            let mut added = Vec::new();
            for output in &outputs {
                added.push(table.upload(output, partition).await?);
            }
            let result = Compacted {
                before: files.len() as u64,
                after: outputs.len() as u64,
                rows: outputs.iter().map(WrittenFile::rows).sum(),
            };
            let before: u64 = files.iter().map(|file| file.data.record_count()).sum();
            if result.rows != before {
                return Err(LakeError::Table {
                    location: table.location().to_owned(),
                    why: format!(
                        "its files have {} rows instead of {before}; nothing was changed",
                        result.rows
                    ),
                });
            }
            let removed: HashSet<_> = files.iter().map(|file| file.data.file_path().to_owned()).collect();
            table.commit(Change { added, removed, rewrites: true, ..Change::default() }, now_ms).await?;
            return Ok(Some(result));
        }
        Ok(None)
    }

    /// Returns files of a table, and the fewer files that shall replace them.
    async fn merged(
        &mut self,
        index: usize,
        now_ms: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<(TablePartition, Vec<LiveFile>, Vec<WrittenFile>)>, LakeError> {
        while let Some((partition, files)) = self.due(index, now_ms) {
            let table = &self.tables[index];
            let mut inputs = Vec::new();
            for file in &files {
                if stop() {
                    return Err(ArchiveError::Interrupted.into());
                }
                inputs.push(table.download(file.data.file_path()).await?);
            }
            let outputs = merge(table, inputs, self.options.target_bytes, stop)?;
            if outputs.len() < files.len() {
                return Ok(Some((partition, files, outputs)));
            }
            // Their rows compress to less than the size at which a merge ends a file, so it would be repeated forever.
            let live: HashSet<&str> =
                self.tables.iter().flat_map(IcebergTable::files).map(|file| file.data.file_path()).collect();
            self.complete.retain(|path| live.contains(path.as_str()));
            self.complete.extend(files.iter().map(|file| file.data.file_path().to_owned()));
        }
        Ok(None)
    }

    /// Selects files to merge, in the order of their notes.
    fn due(&self, index: usize, now_ms: u64) -> Option<(TablePartition, Vec<LiveFile>)> {
        let mut groups: BTreeMap<(TablePartition, u32), Vec<&LiveFile>> = BTreeMap::new();
        for file in self.tables[index].files() {
            let small = file.data.file_size_in_bytes() < self.options.target_bytes / 2
                && !self.complete.contains(file.data.file_path());
            if let (true, Some(partition), Some(shard)) = (small, file.partition, file.shard()) {
                groups.entry((partition, shard)).or_default().push(file);
            }
        }
        let today = Partition::of("".into(), now_ms).day;
        for ((partition, shard), mut files) in groups {
            let added = self.appended.get(&(index, shard, partition)).copied().unwrap_or(0);
            let quiet = now_ms.saturating_sub(added) >= self.options.compact_after_ms;
            files.sort_unstable_by_key(|file| (file.notes().start, file.notes().end));
            let run = match partition.day < today {
                true => &files[..],
                false => worth_merging(&files),
            };
            if run.len() < if quiet { 2 } else { FILES } {
                continue;
            }
            let mut bytes = 0;
            let count = run.iter().take_while(|file| {
                bytes += file.data.file_size_in_bytes();
                bytes <= self.options.target_bytes
            });
            let count = count.count();
            return Some((partition, run[..count.max(2)].iter().map(|&file| file.clone()).collect()));
        }
        None
    }
}

/// Returns the newest files, up to the first one that is more than twice as large as all later ones together.
///
/// A merge of every new file with all rows of the day would write these rows hundreds of times. Each merge of this choice
/// puts a row into a file that is at least half as large again, so that it is written a few times only. When the day is
/// over, its last files are merged once.
fn worth_merging<'a, 'b>(files: &'a [&'b LiveFile]) -> &'a [&'b LiveFile] {
    let mut bytes = 0;
    let newest = files.iter().rev().take_while(|file| {
        let size = file.data.file_size_in_bytes();
        let fits = bytes == 0 || size <= 2 * bytes;
        bytes += size;
        fits
    });
    &files[files.len() - newest.count()..]
}

/// Merges sorted files into files of about `target_bytes`.
fn merge(
    table: &IcebergTable,
    inputs: Vec<Bytes>,
    target_bytes: u64,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<WrittenFile>, LakeError> {
    let mut cursors = Vec::new();
    for input in inputs {
        cursors.extend(Cursor::open(input, table.table())?);
    }
    let mut outputs = Vec::new();
    let mut writer: Option<FileWriter> = None;
    while let Some(queue) = cursors.iter().map(|cursor| cursor.queue().map(str::to_owned)).min() {
        if stop() {
            return Err(ArchiveError::Interrupted.into());
        }
        let mut rest = Vec::new();
        for mut cursor in cursors {
            while cursor.queue() == queue.as_deref() {
                let into = match writer.as_mut() {
                    Some(writer) => writer,
                    None => writer.insert(FileWriter::new(table.table(), table.parquet())?),
                };
                into.write(&cursor.take_run())?;
                if into.bytes() as u64 >= target_bytes {
                    outputs.extend(writer.take().map(FileWriter::finish).transpose()?);
                }
                if !cursor.advance()? {
                    break;
                }
            }
            if !cursor.is_done() {
                rest.push(cursor);
            }
        }
        cursors = rest;
    }
    outputs.extend(writer.map(FileWriter::finish).transpose()?);
    Ok(outputs)
}

/// A position in a sorted file.
struct Cursor {
    reader: ParquetRecordBatchReader,
    table: Table,
    batch: RecordBatch,
    queues: StringArray,
    row: usize,
}

impl Cursor {
    /// Opens a file at its first row; `None`: it has no rows.
    fn open(file: Bytes, table: Table) -> Result<Option<Self>, LakeError> {
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(BATCH_ROWS).build()?;
        let batch = RecordBatch::new_empty(table.schema());
        let queues = StringArray::new_null(0);
        let mut cursor = Self { reader, table, batch, queues, row: 0 };
        Ok(cursor.advance()?.then_some(cursor))
    }

    fn is_done(&self) -> bool {
        self.row >= self.batch.num_rows()
    }

    /// The queue of the current row.
    fn queue(&self) -> Option<&str> {
        self.queues.is_valid(self.row).then(|| self.queues.value(self.row))
    }

    /// Takes the rows of the current queue from the current batch.
    fn take_run(&mut self) -> RecordBatch {
        let first = self.row;
        let queue = self.queue().map(str::to_owned);
        while !self.is_done() && self.queue() == queue.as_deref() {
            self.row += 1;
        }
        self.batch.slice(first, self.row - first)
    }

    /// Reads the next batch if the current one is used up. False at the end of the file.
    fn advance(&mut self) -> Result<bool, LakeError> {
        while self.is_done() {
            let Some(batch) = self.reader.next() else { return Ok(false) };
            self.batch = conform(&batch?, self.table)?;
            let queues = self.batch.column_by_name("queue").and_then(|column| column.as_string_opt::<i32>());
            self.queues = queues.cloned().ok_or_else(|| LakeError::Table {
                location: self.table.as_str().to_owned(),
                why: "a file has no column queue".to_owned(),
            })?;
            self.row = 0;
        }
        Ok(true)
    }
}
