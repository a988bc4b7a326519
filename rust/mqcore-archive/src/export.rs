//! Rows into one file: Parquet, or Arrow's stream of record batches.

use std::io::Write;

use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::tables::{ASCENDING, OPAQUE, REPEATING, Rows, Table};

/// Rows that are made a batch of at most.
const BATCH_ROWS: usize = 16 * 1024;
/// Bytes after which a batch is made of them, so that large bodies do not pile up.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Rows of a row group at most.
const GROUP_ROWS: usize = 256 * 1024;
/// Bytes, compressed, after which a row group is ended.
const GROUP_BYTES: usize = 64 * 1024 * 1024;
/// How hard Zstandard tries: files are a fifth smaller than with 1, for a tenth more work; 3 takes as much again for little.
const EFFORT: i32 = 2;

/// What a file is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet, compressed with zstd.
    Parquet,
    /// The stream format of Arrow IPC, uncompressed.
    Arrow,
}

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Rows do not fit their table, or the destination refused bytes.
    #[error("writing record batches: {0}")]
    Arrow(#[from] ArrowError),
    /// The same of a Parquet file.
    #[error("writing Parquet: {0}")]
    Parquet(#[from] ParquetError),
}

/// A file that grows row by row.
pub struct Exporter<W: Write + Send> {
    /// What is pushed here is written as soon as there is enough of it: call [`Exporter::advance`] after each row.
    pub rows: Rows,
    sink: Sink<W>,
    count: u64,
}

enum Sink<W: Write + Send> {
    Parquet(Box<ArrowWriter<W>>),
    Arrow(Box<StreamWriter<W>>),
}

impl<W: Write + Send> Exporter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// [`ExportError`], as for all of these.
    pub fn new(format: Format, table: Table, into: W) -> Result<Self, ExportError> {
        let schema = table.schema();
        let sink = match format {
            Format::Parquet => {
                let options = ArrowWriterOptions::new().with_properties(properties());
                Sink::Parquet(Box::new(ArrowWriter::try_new_with_options(into, schema, options)?))
            }
            Format::Arrow => Sink::Arrow(Box::new(StreamWriter::try_new(into, &schema)?)),
        };
        Ok(Self { rows: Rows::new(table), sink, count: 0 })
    }

    /// Rows so far.
    pub fn count(&self) -> u64 {
        self.count + self.rows.len() as u64
    }

    /// Writes a batch if enough rows are gathered.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn advance(&mut self) -> Result<(), ExportError> {
        if self.rows.len() >= BATCH_ROWS || self.rows.bytes() >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.count += self.rows.len() as u64;
        let batch = self.rows.take()?;
        match &mut self.sink {
            Sink::Parquet(writer) => {
                writer.write(&batch)?;
                if writer.in_progress_size() >= GROUP_BYTES {
                    writer.flush()?;
                }
            }
            Sink::Arrow(writer) => writer.write(&batch)?,
        }
        Ok(())
    }

    /// Writes the rest and the end of the file; answers how many rows there are, and the destination.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn finish(mut self) -> Result<(u64, W), ExportError> {
        self.flush()?;
        let count = self.count;
        let into = match self.sink {
            Sink::Parquet(writer) => writer.into_inner()?,
            Sink::Arrow(writer) => writer.into_inner()?,
        };
        Ok((count, into))
    }
}

/// Zstandard; the smallest and largest value of every column that is asked for; dictionaries where few values
/// repeat, differences where numbers ascend.
fn properties() -> WriterProperties {
    let effort = ZstdLevel::try_new(EFFORT).unwrap_or_default();
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(effort))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_created_by(format!("mqcore {}", env!("CARGO_PKG_VERSION")));
    for name in REPEATING {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(name), true);
    }
    for name in ASCENDING {
        properties = properties.set_column_encoding(ColumnPath::from(name), Encoding::DELTA_BINARY_PACKED);
    }
    for name in OPAQUE {
        properties =
            properties.set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::None);
    }
    properties.build()
}
