//! Export of rows to one file, in Parquet or Arrow IPC stream format.

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

/// Maximum number of rows in a batch.
const BATCH_ROWS: usize = 16 * 1024;
/// Size in bytes at which a batch is completed, so that large bodies do not accumulate.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of rows in a row group.
const GROUP_ROWS: usize = 256 * 1024;
/// Compressed size in bytes at which a row group is completed.
pub const GROUP_BYTES: usize = 64 * 1024 * 1024;
/// Zstandard level. Compared with 1, files are a fifth smaller for a tenth more work; 3 costs as much again for little gain.
const EFFORT: i32 = 2;

/// File format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet, compressed with Zstandard.
    Parquet,
    /// Arrow IPC stream, uncompressed.
    Arrow,
}

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The rows do not match their table, or the destination cannot be written.
    #[error("writing record batches: {0}")]
    Arrow(#[from] ArrowError),
    /// The Parquet writer failed.
    #[error("writing Parquet: {0}")]
    Parquet(#[from] ParquetError),
}

/// A writer for one file.
pub struct Exporter<W: Write + Send> {
    /// Rows of the next batch. Call [`Exporter::advance`] after adding each row.
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
    /// [`ExportError`] if the beginning of the file cannot be written.
    pub fn new(format: Format, table: Table, into: W) -> Result<Self, ExportError> {
        let schema = table.schema();
        let sink = match format {
            Format::Parquet => {
                let options = ArrowWriterOptions::new().with_properties(parquet_properties());
                Sink::Parquet(Box::new(ArrowWriter::try_new_with_options(into, schema, options)?))
            }
            Format::Arrow => Sink::Arrow(Box::new(StreamWriter::try_new(into, &schema)?)),
        };
        Ok(Self { rows: Rows::new(table), sink, count: 0 })
    }

    /// Number of rows added so far.
    pub fn count(&self) -> u64 {
        self.count + self.rows.len() as u64
    }

    /// Writes a batch if enough rows have been added.
    ///
    /// # Errors
    /// [`ExportError`] if the batch cannot be written.
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

    /// Writes the remaining rows and the end of the file. Returns the number of rows, and the destination.
    ///
    /// # Errors
    /// [`ExportError`] if the file cannot be completed.
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

/// Zstandard compression, minimum and maximum of every searchable column, dictionaries for repetitive values, and delta
/// encoding for ascending numbers.
pub fn parquet_properties() -> WriterProperties {
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
