//! The matching rows of one file of the archive.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::BooleanBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampMicrosecondType};
use arrow_array::{Array, BooleanArray, RecordBatch};
use arrow_schema::ArrowError;
use arrow_select::filter::filter_record_batch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;

use super::ReadError;
use super::columns::{note_of, sequence, sequences, text};
use super::request::{HistoryRequest, QueueMemory};
use super::slices::QueueSlice;
use super::source::{ArchiveFile, RemoteFile};
use crate::conforming::plain;
use crate::manifest::FileEntry;

/// Columns used to evaluate the conditions on rows.
const DECIDING: [&str; 6] = ["time", "shard", "note", "position", "kind", "queue"];
/// Columns that identify a row of a shard.
const IDENTIFYING: [&str; 2] = ["note", "position"];

/// The rows of a piece that come from the archive.
pub(super) struct Selection {
    pub(super) shard: u32,
    /// Range of sequences.
    pub(super) range: Range<u64>,
    pub(super) queues: Option<QueueSlice>,
    pub(super) delivered: Delivered,
}

impl Selection {
    /// Whether the piece may have rows of a file that has some of its notes.
    pub(super) fn may_want(&self, request: &HistoryRequest, file: &FileEntry) -> bool {
        file.shard == self.shard
            && request.may_want(file)
            && self.queues.as_ref().is_none_or(|queues| queues.may_have(file))
    }

    fn wants_group(&self, request: &HistoryRequest, notes: &[Range<u64>], group: &RowGroupMetaData) -> bool {
        if let Some((first, last)) = longs(group, "note") {
            let (first, last) = (first.cast_unsigned(), last.cast_unsigned());
            let held = notes.iter().any(|range| first < range.end && range.start <= last);
            if !held || last < note_of(self.range.start) || self.range.end <= sequence(first, 0) {
                return false;
            }
        }
        if let Some((first, last)) = longs(group, "time")
            && !request.overlaps_us(first, last)
        {
            return false;
        }
        let Some((first, last, exact)) = texts(group, "queue") else { return true };
        self.queues.as_ref().is_none_or(|queues| queues.overlaps(first, last))
            && (!exact || first != last || request.wants_queue(Some(first)))
    }
}

/// Remembers the rows of objects that were delivered: if an object is merged and deleted meanwhile, the piece continues with
/// the object that has its rows, and others.
#[derive(Default)]
pub(super) struct Delivered {
    sequences: Vec<i64>,
    /// Sorted. Rows that no further file delivers.
    excluded: Vec<i64>,
}

impl Delivered {
    /// Do not deliver the rows again that were delivered so far.
    pub(super) fn exclude(&mut self) {
        self.excluded.clone_from(&self.sequences);
        self.excluded.sort_unstable();
    }

    fn excludes(&self, sequence: u64) -> bool {
        self.excluded.binary_search(&sequence.cast_signed()).is_ok()
    }
}

/// Why a file cannot be read.
pub(super) enum FileError {
    /// It has been deleted.
    Removed,
    /// Another reason.
    Read(ReadError),
}

/// An open file, and the notes to read from it.
pub(super) struct OpenFile {
    reader: ParquetRecordBatchReader,
    pub(super) entry: Box<FileEntry>,
    path: PathBuf,
    object: Option<Arc<dyn RemoteFile>>,
    notes: Vec<Range<u64>>,
    /// Whether all its rows match.
    whole: bool,
}

impl OpenFile {
    /// Opens a file for batches of about `batch_bytes` and at most `batch_rows` rows.
    pub(super) fn open(
        handle: ArchiveFile,
        entry: Box<FileEntry>,
        path: PathBuf,
        notes: Vec<Range<u64>>,
        selection: &Selection,
        request: &HistoryRequest,
        (batch_rows, batch_bytes): (usize, usize),
    ) -> Result<Self, FileError> {
        let object = handle.object();
        let broken =
            |error: parquet::errors::ParquetError| failure(object.as_deref(), &path, &error.to_string());
        let builder = ParquetRecordBatchReaderBuilder::try_new(handle).map_err(broken)?;
        let inside =
            notes.len() == 1 && notes[0].contains(&entry.min_note) && notes[0].contains(&entry.max_note);
        let range = &selection.range;
        let cut = range.start > sequence(entry.min_note, 0)
            || range.end <= sequence(entry.max_note.min(u64::MAX >> 21), u32::MAX);
        let whole = inside
            && !cut
            && request.wants_all()
            && selection.queues.as_ref().is_none_or(|queues| queues.has_all(&entry))
            && selection.delivered.excluded.is_empty();
        let shape = &request.shape;
        let wanted = |name: &str| {
            shape.needs(name)
                || (!whole && DECIDING.contains(&name))
                || (object.is_some() && IDENTIFYING.contains(&name))
        };
        let schema = builder.parquet_schema();
        let roots = schema.root_schema().get_fields().iter().enumerate();
        let roots: Vec<_> = roots.filter(|(_, field)| wanted(field.name())).map(|(index, _)| index).collect();
        let mask = ProjectionMask::roots(schema, roots);
        let body = if shape.needs("body") { (2 * entry.bytes / entry.rows.max(1)) as usize } else { 0 };
        let rows = (batch_bytes / (body + 64)).clamp(64, batch_rows);
        let groups = wanted_groups(builder.metadata(), |group| selection.wants_group(request, &notes, group));
        let builder = builder.with_projection(mask).with_batch_size(rows);
        let builder = match groups {
            Some(groups) if !whole => builder.with_row_groups(groups),
            _ => builder,
        };
        let reader = builder.build().map_err(broken)?;
        Ok(Self { reader, entry, path, object, notes, whole })
    }

    /// Returns the next matching rows with the selected columns, which may be none of a batch; `None`: the file ends.
    pub(super) fn advance(
        &mut self,
        selection: &mut Selection,
        request: &HistoryRequest,
    ) -> Result<Option<Option<RecordBatch>>, FileError> {
        let Some(batch) = self.reader.next() else { return Ok(None) };
        let needs = |name: &str| request.shape.needs(name);
        let batch = batch.and_then(|batch| plain(&batch, request.shape.view().table(), &needs));
        let found = batch.and_then(|batch| self.wanted(&batch, selection, request));
        found.map(Some).map_err(|error| failure(self.object.as_deref(), &self.path, &error.to_string()))
    }

    fn wanted(
        &self,
        rows: &RecordBatch,
        selection: &mut Selection,
        request: &HistoryRequest,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let filtered;
        let rows = if self.whole {
            rows
        } else {
            let mask = self.mask(rows, selection, request)?;
            if mask.true_count() == 0 {
                return Ok(None);
            }
            filtered = filter_record_batch(rows, &mask)?;
            &filtered
        };
        let shaped = request.shape.apply(rows)?;
        if self.object.is_some() {
            selection.delivered.sequences.extend(sequences(rows)?.values());
        }
        Ok(Some(shaped))
    }

    fn mask(
        &self,
        rows: &RecordBatch,
        selection: &Selection,
        request: &HistoryRequest,
    ) -> Result<BooleanArray, ArrowError> {
        let all = sequences(rows)?;
        let times = rows
            .column_by_name("time")
            .and_then(|times| times.as_primitive_opt::<TimestampMicrosecondType>())
            .ok_or_else(|| ArrowError::SchemaError("the column time has an unexpected type".to_owned()))?;
        let shards = rows
            .column_by_name("shard")
            .and_then(|shards| shards.as_primitive_opt::<Int32Type>())
            .ok_or_else(|| {
            ArrowError::SchemaError("the column shard has an unexpected type".to_owned())
        })?;
        let (kinds, queues) = (text(rows, "kind")?, text(rows, "queue")?);
        let slice = selection.queues.as_ref();
        let mut memory = QueueMemory::default();
        let wants = |queue: Option<&str>| {
            slice.is_none_or(|slice| slice.contains(queue)) && request.wants_queue(queue)
        };
        let mut mask = BooleanBuilder::with_capacity(rows.num_rows());
        for row in 0..rows.num_rows() {
            let at = all.value(row).cast_unsigned();
            let queue = queues.is_valid(row).then(|| queues.value(row));
            mask.append_value(
                shards.value(row).cast_unsigned() == selection.shard
                    && selection.range.contains(&at)
                    && self.notes.iter().any(|range| range.contains(&note_of(at)))
                    && request.wants_time(times.value(row))
                    && request.wants_kind(kinds.value(row))
                    && memory.wants(queue, wants)
                    && !selection.delivered.excludes(at),
            );
        }
        Ok(mask.finish())
    }
}

fn failure(object: Option<&dyn RemoteFile>, path: &Path, why: &str) -> FileError {
    match object.and_then(RemoteFile::failure) {
        Some(io::ErrorKind::NotFound) => FileError::Removed,
        _ => FileError::Read(ReadError::Parquet { path: path.to_path_buf(), why: why.to_owned() }),
    }
}

/// Returns the numbers of the row groups to read; `None`: all of them.
fn wanted_groups(
    metadata: &ParquetMetaData,
    wants: impl Fn(&RowGroupMetaData) -> bool,
) -> Option<Vec<usize>> {
    let groups = metadata.row_groups().iter().enumerate();
    let wanted: Vec<_> = groups.filter(|(_, group)| wants(group)).map(|(index, _)| index).collect();
    (wanted.len() < metadata.num_row_groups()).then_some(wanted)
}

fn statistics<'a>(group: &'a RowGroupMetaData, name: &str) -> Option<&'a Statistics> {
    group.columns().iter().find(|column| column.column_path().string() == name)?.statistics()
}

/// Returns the smallest and the largest number of a column.
fn longs(group: &RowGroupMetaData, name: &str) -> Option<(i64, i64)> {
    match statistics(group, name)? {
        Statistics::Int64(found) => Some((*found.min_opt()?, *found.max_opt()?)),
        _ => None,
    }
}

/// Returns bounds of a column's texts, and whether they are the smallest and the largest text. `None`: there are rows without
/// a text, or the bounds are unknown.
fn texts<'a>(group: &'a RowGroupMetaData, name: &str) -> Option<(&'a str, &'a str, bool)> {
    let found = statistics(group, name)?;
    if found.null_count_opt() != Some(0) {
        return None;
    }
    let text = |bytes: Option<&'a [u8]>| std::str::from_utf8(bytes?).ok();
    let exact = found.min_is_exact() && found.max_is_exact();
    Some((text(found.min_bytes_opt())?, text(found.max_bytes_opt())?, exact))
}
