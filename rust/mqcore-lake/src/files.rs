//! Data files: one Parquet file with the rows of one shard and one partition, sorted by queue, and what Iceberg stores about it.

use std::collections::HashMap;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, Datum, PrimitiveLiteral, Schema,
};
use mqcore_archive::export::{GROUP_BYTES, parquet_properties};
use mqcore_archive::tables::Table;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::SchemaDescriptor;

use crate::error::LakeError;
use crate::schema::{TablePartition, field_id};

/// The smallest and the largest value of a column.
type Bounds<T> = Option<(T, T)>;

/// Minimum and maximum of the columns by which files are selected.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FileBounds {
    pub(crate) shard: Bounds<i32>,
    /// In microseconds since the Unix epoch.
    pub(crate) time_us: Bounds<i64>,
    pub(crate) note: Bounds<i64>,
    pub(crate) number: Bounds<i64>,
    pub(crate) queue: Bounds<String>,
}

/// A data file of a table's current snapshot.
#[derive(Debug, Clone)]
pub(crate) struct LiveFile {
    pub(crate) data: DataFile,
    pub(crate) bounds: FileBounds,
    /// `None`: another program has changed the partitions of the table.
    pub(crate) partition: Option<TablePartition>,
}

impl LiveFile {
    pub(crate) fn new(data: DataFile, schema: &Schema) -> Self {
        let bounds = FileBounds::of(&data, schema);
        let partition = TablePartition::of(data.partition());
        Self { data, bounds, partition }
    }

    /// The shard of all rows; `None`: they are of several, or it is unknown.
    pub(crate) fn shard(&self) -> Option<u32> {
        let (first, last) = self.bounds.shard?;
        (first == last).then_some(first.cast_unsigned())
    }

    /// Numbers of the notes, from the smallest to the largest.
    pub(crate) fn notes(&self) -> Range<u64> {
        self.bounds.note.map_or(0..0, |(first, last)| first.cast_unsigned()..last.cast_unsigned() + 1)
    }

    /// Latest time of a row in milliseconds since the Unix epoch.
    pub(crate) fn max_time_ms(&self) -> u64 {
        self.bounds.time_us.map_or(u64::MAX, |(_, last)| u64::try_from(last / 1000).unwrap_or(0))
    }
}

impl FileBounds {
    fn of(data: &DataFile, schema: &Schema) -> Self {
        let of = |name: &str| {
            let id = field_id(schema, name);
            Some((data.lower_bounds().get(&id)?.literal(), data.upper_bounds().get(&id)?.literal()))
        };
        let long = |name: &str| match of(name)? {
            (PrimitiveLiteral::Long(low), PrimitiveLiteral::Long(high)) => Some((*low, *high)),
            _ => None,
        };
        Self {
            shard: match of("shard") {
                Some((PrimitiveLiteral::Int(low), PrimitiveLiteral::Int(high))) => Some((*low, *high)),
                _ => None,
            },
            time_us: long("time"),
            note: long("note"),
            number: long("number"),
            queue: match of("queue") {
                Some((PrimitiveLiteral::String(low), PrimitiveLiteral::String(high))) => {
                    Some((low.clone(), high.clone()))
                }
                _ => None,
            },
        }
    }

    /// Extends the bounds by rows that are sorted by queue.
    fn add(&mut self, rows: &RecordBatch) {
        extend(&mut self.shard, numbers::<Int32Type>(rows, "shard"));
        extend(&mut self.time_us, numbers::<TimestampMicrosecondType>(rows, "time"));
        extend(&mut self.note, numbers::<Int64Type>(rows, "note"));
        extend(&mut self.number, numbers::<Int64Type>(rows, "number"));
        let queues = rows.column_by_name("queue").and_then(|column| column.as_string_opt::<i32>());
        if let Some(queues) = queues.filter(|queues| !queues.is_empty() && queues.is_valid(0)) {
            let (first, last) = (queues.value(0), queues.value(queues.len() - 1));
            extend(&mut self.queue, Some((first.to_owned(), last.to_owned())));
        }
    }

    fn lower(&self, schema: &Schema) -> HashMap<i32, Datum> {
        self.data(schema, |bounds| bounds.0, |bounds| bounds.0, |bounds| &bounds.0)
    }

    fn upper(&self, schema: &Schema) -> HashMap<i32, Datum> {
        self.data(schema, |bounds| bounds.1, |bounds| bounds.1, |bounds| &bounds.1)
    }

    fn data(
        &self,
        schema: &Schema,
        int: impl Fn((i32, i32)) -> i32,
        long: impl Fn((i64, i64)) -> i64,
        text: impl Fn(&(String, String)) -> &String,
    ) -> HashMap<i32, Datum> {
        let long = |bounds: Bounds<i64>| bounds.map(&long);
        [
            ("shard", self.shard.map(int).map(Datum::int)),
            ("time", long(self.time_us).map(Datum::timestamptz_micros)),
            ("note", long(self.note).map(Datum::long)),
            ("number", long(self.number).map(Datum::long)),
            ("queue", self.queue.as_ref().map(text).map(Datum::string)),
        ]
        .into_iter()
        .filter_map(|(name, datum)| Some((field_id(schema, name), datum?)))
        .collect()
    }
}

fn extend<T: PartialOrd>(bounds: &mut Bounds<T>, more: Bounds<T>) {
    *bounds = match (bounds.take(), more) {
        (Some((low, high)), Some((more_low, more_high))) => Some((
            if more_low < low { more_low } else { low },
            if more_high > high { more_high } else { high },
        )),
        (known, more) => known.or(more),
    };
}

fn numbers<T: ArrowPrimitiveType>(rows: &RecordBatch, name: &str) -> Bounds<T::Native>
where
    T::Native: Ord,
{
    let column = rows.column_by_name(name)?.as_primitive_opt::<T>()?;
    let (low, high) = (column.iter().flatten().min()?, column.iter().flatten().max()?);
    Some((low, high))
}

/// A data file under construction. Its rows must arrive sorted by queue, note and position.
pub(crate) struct FileWriter {
    writer: ArrowWriter<Vec<u8>>,
    bounds: FileBounds,
    rows: u64,
}

/// The content of a data file, and what Iceberg stores about it.
#[derive(Debug)]
pub(crate) struct WrittenFile {
    pub(crate) bytes: Bytes,
    bounds: FileBounds,
    rows: u64,
    metadata: ParquetMetaData,
}

impl FileWriter {
    pub(crate) fn new(table: Table, schema: &SchemaDescriptor) -> Result<Self, LakeError> {
        let options = ArrowWriterOptions::new()
            .with_properties(parquet_properties())
            .with_parquet_schema(schema.clone());
        let writer = ArrowWriter::try_new_with_options(Vec::new(), table.schema(), options)?;
        Ok(Self { writer, bounds: FileBounds::default(), rows: 0 })
    }

    pub(crate) fn write(&mut self, rows: &RecordBatch) -> Result<(), LakeError> {
        self.writer.write(rows)?;
        self.bounds.add(rows);
        self.rows += rows.num_rows() as u64;
        if self.writer.in_progress_size() >= GROUP_BYTES {
            self.writer.flush()?;
        }
        Ok(())
    }

    /// Approximate size of the file so far in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.writer.bytes_written() + self.writer.in_progress_size()
    }

    pub(crate) fn finish(mut self) -> Result<WrittenFile, LakeError> {
        let metadata = self.writer.finish()?;
        let bytes = Bytes::from(std::mem::take(self.writer.inner_mut()));
        Ok(WrittenFile { bytes, bounds: self.bounds, rows: self.rows, metadata })
    }
}

impl WrittenFile {
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns what a manifest stores about the file at this location.
    pub(crate) fn describe(
        &self,
        location: String,
        partition: TablePartition,
        schema: &Schema,
        spec_id: i32,
        sort_order_id: i32,
    ) -> Result<DataFile, LakeError> {
        let (mut sizes, mut values, mut nulls) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut offsets = Vec::new();
        for group in self.metadata.row_groups() {
            offsets.extend(group.columns().first().map(|column| column.byte_range().0.cast_signed()));
            for column in group.columns() {
                let info = column.column_descr().self_type().get_basic_info();
                if !info.has_id() {
                    continue;
                }
                *sizes.entry(info.id()).or_insert(0) += column.compressed_size().cast_unsigned();
                *values.entry(info.id()).or_insert(0) += column.num_values().cast_unsigned();
                if let Some(count) = column.statistics().and_then(|statistics| statistics.null_count_opt()) {
                    *nulls.entry(info.id()).or_insert(0) += count;
                }
            }
        }
        let built = DataFileBuilder::default()
            .content(DataContentType::Data)
            .file_path(location)
            .file_format(DataFileFormat::Parquet)
            .partition(partition.values())
            .partition_spec_id(spec_id)
            .record_count(self.rows)
            .file_size_in_bytes(self.bytes.len() as u64)
            .column_sizes(sizes)
            .value_counts(values)
            .null_value_counts(nulls)
            .lower_bounds(self.bounds.lower(schema))
            .upper_bounds(self.bounds.upper(schema))
            .split_offsets(Some(offsets))
            .sort_order_id(sort_order_id)
            .build();
        built.map_err(|error| LakeError::Table { location: "a data file".to_owned(), why: error.to_string() })
    }
}
