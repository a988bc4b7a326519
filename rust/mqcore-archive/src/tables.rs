//! The columns of each table, and the conversion of rows to record batches.
//!
//! All types are widely supported: UTC times in microseconds, signed integers, plain text and bytes. The schema contains no
//! dictionary-encoded or "large" types; the file formats compress repeated values themselves.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, BooleanBuilder, Int32Builder, Int64Builder, ListBuilder, StringBuilder,
    StructBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use mqcore_broker::history::ranges::NumberRanges;
use mqcore_broker::history::{ClientView, LifecycleKind, LifecycleStep};
use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::record::{DeliveryProgress, PutMessage};

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// One row per message that arrived in a queue, with its content.
    Messages,
    /// One row per lifecycle event of a message.
    Steps,
    /// One row per message in the journal of a stopped broker; used in exports only.
    Stored,
}

impl Table {
    /// Name of the table and of its directory.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Steps => "steps",
            Self::Stored => "stored",
        }
    }

    /// Columns of the table.
    pub fn schema(self) -> SchemaRef {
        static SCHEMAS: LazyLock<[SchemaRef; 3]> =
            LazyLock::new(|| [schema(&messages()), schema(&steps()), schema(&stored())]);
        let [messages, steps, stored] = &*SCHEMAS;
        Arc::clone(match self {
            Self::Messages => messages,
            Self::Steps => steps,
            Self::Stored => stored,
        })
    }
}

/// Columns with few distinct values, which are dictionary-encoded in files.
pub const REPEATING: [&str; 17] = [
    "shard",
    "queue",
    "kind",
    "attempt",
    "reason",
    "target",
    "content_type",
    "producer_id",
    "producer_name",
    "producer_type",
    "producer_protocol",
    "consumer_id",
    "consumer_name",
    "consumer_type",
    "consumer_protocol",
    "source",
    "attempts",
];

/// Columns with mostly ascending numbers, which are delta-encoded in files.
pub const ASCENDING: [&str; 5] = ["time", "note", "position", "number", "sequence"];

/// Size of a range of message numbers in memory, in bytes.
const RANGE_BYTES: usize = 16;

/// Columns without minimum and maximum statistics.
pub const OPAQUE: [&str; 1] = ["body"];

fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn headers() -> DataType {
    DataType::List(Arc::new(Field::new("element", DataType::Struct(header()), true)))
}

/// Message numbers as ranges of consecutive numbers.
fn numbers() -> DataType {
    DataType::List(Arc::new(Field::new("element", DataType::Struct(range()), true)))
}

fn range() -> Fields {
    vec![Field::new("first", DataType::Int64, true), Field::new("last", DataType::Int64, true)].into()
}

fn header() -> Fields {
    vec![Field::new("key", DataType::Utf8, true), Field::new("value", DataType::Binary, true)].into()
}

type Columns = Vec<(&'static str, DataType, bool)>;

fn schema(columns: &Columns) -> SchemaRef {
    let fields: Vec<_> =
        columns.iter().map(|(name, kind, null)| Field::new(*name, kind.clone(), *null)).collect();
    Arc::new(Schema::new(fields))
}

/// The position of a row in the history: `note` and `position` order all rows of a shard.
fn placed() -> Columns {
    vec![
        ("time", time(), false),
        ("shard", DataType::Int32, false),
        ("note", DataType::Int64, false),
        ("position", DataType::Int32, false),
    ]
}

fn who(columns: &mut Columns, names: [&'static str; 4]) {
    columns.extend(names.map(|name| (name, DataType::Utf8, true)));
}

const PRODUCER: [&str; 4] = ["producer_id", "producer_name", "producer_type", "producer_protocol"];
const CONSUMER: [&str; 4] = ["consumer_id", "consumer_name", "consumer_type", "consumer_protocol"];

fn messages() -> Columns {
    let mut columns = placed();
    columns.extend([
        ("kind", DataType::Utf8, false),
        ("queue", DataType::Utf8, false),
        ("number", DataType::Int64, false),
        ("message_id", DataType::Utf8, true),
        ("high_priority", DataType::Boolean, false),
        ("content_type", DataType::Int32, false),
    ]);
    who(&mut columns, PRODUCER);
    columns.extend([
        ("headers", headers(), true),
        ("header_bytes", DataType::Int64, false),
        ("body", DataType::Binary, true),
        ("body_bytes", DataType::Int64, false),
    ]);
    columns
}

fn steps() -> Columns {
    let mut columns = placed();
    columns.extend([
        ("kind", DataType::Utf8, false),
        ("queue", DataType::Utf8, true),
        ("number", DataType::Int64, true),
        ("message_id", DataType::Utf8, true),
        ("attempt", DataType::Int32, true),
        ("last", DataType::Boolean, false),
        ("reason", DataType::Utf8, true),
        ("target", DataType::Utf8, true),
        ("header_bytes", DataType::Int64, true),
        ("body_bytes", DataType::Int64, true),
    ]);
    who(&mut columns, PRODUCER);
    who(&mut columns, CONSUMER);
    columns.extend([
        ("missing", DataType::Int64, true),
        ("messages", DataType::Int64, true),
        ("numbers", numbers(), true),
    ]);
    columns
}

fn stored() -> Columns {
    vec![
        ("time", time(), false),
        ("shard", DataType::Int32, false),
        ("sequence", DataType::Int64, false),
        ("queue", DataType::Utf8, false),
        ("number", DataType::Int64, true),
        ("message_id", DataType::Utf8, true),
        ("source", DataType::Utf8, true),
        ("high_priority", DataType::Boolean, false),
        ("content_type", DataType::Int32, false),
        ("attempts", DataType::Int32, false),
        ("put_backs", DataType::Int32, false),
        ("headers", headers(), true),
        ("body", DataType::Binary, true),
    ]
}

/// Rows of one table, stored by column.
pub struct Rows {
    schema: SchemaRef,
    /// One per column of the table; `None`: the column is omitted.
    columns: Vec<Option<Column>>,
    rows: usize,
    bytes: usize,
}

/// The position of an event in the history of its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepPlace {
    /// Shard number.
    pub shard: u32,
    /// Note number.
    pub note: u64,
    /// Position within the note, from 0.
    pub position: u32,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rows, bytes, .. } = self;
        formatter.debug_struct("Rows").field("rows", rows).field("bytes", bytes).finish()
    }
}

impl Rows {
    /// Creates an empty set of rows with all columns.
    pub fn new(table: Table) -> Self {
        Self::of(table, &|_| true)
    }

    /// Creates an empty set of rows with the columns whose names are `wanted`.
    pub fn of(table: Table, wanted: &dyn Fn(&str) -> bool) -> Self {
        let all = table.schema();
        let columns =
            all.fields().iter().map(|field| wanted(field.name()).then(|| Column::new(field.data_type())));
        let columns = columns.collect();
        let fields: Vec<_> = all.fields().iter().filter(|field| wanted(field.name())).cloned().collect();
        Self { schema: Arc::new(Schema::new(fields)), columns, rows: 0, bytes: 0 }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an event as a row of [`Table::Steps`].
    ///
    /// # Errors
    /// A column has another type than its builder, which is a bug in this module.
    pub fn push_step(&mut self, place: StepPlace, step: &LifecycleStep<'_>) -> Result<(), ArrowError> {
        let of_queue = !step.kind.is_of_a_shard();
        let of_message = of_queue && step.numbers.is_none();
        let number = of_queue.then(|| signed(step.number.0));
        let ranges = step.numbers.map_or(0, |numbers| numbers.iter().count());
        let mut row = self.row(160 + ranges * RANGE_BYTES);
        row.placed(step.time.0, place)?;
        row.text(Some(step.kind.as_str()))?;
        row.text(of_queue.then_some(step.queue))?;
        row.long(number)?;
        row.lossy(step.id)?;
        row.int(of_message.then(|| i32::from(step.attempt)))?;
        row.flag(step.last)?;
        row.text(step.reason)?;
        row.text(step.target)?;
        row.long(of_message.then(|| signed(step.header_bytes)))?;
        row.long(of_message.then(|| signed(step.body_bytes)))?;
        row.who(step.producer)?;
        row.who(step.consumer)?;
        row.long((step.kind == LifecycleKind::Gap).then(|| signed(step.missing)))?;
        row.long(step.numbers.map(|numbers| signed(numbers.count())))?;
        row.ranges(step.numbers)
    }

    /// Adds the arrival of a message as a row of [`Table::Messages`]. Ignores events without content.
    ///
    /// # Errors
    /// The same as [`Self::push_step`].
    pub fn push_message(&mut self, place: StepPlace, step: &LifecycleStep<'_>) -> Result<(), ArrowError> {
        let Some(content) = step.content else { return Ok(()) };
        let bytes = content.headers.len() + content.body.map_or(0, <[u8]>::len);
        let mut row = self.row(160 + bytes);
        row.placed(step.time.0, place)?;
        row.text(Some(step.kind.as_str()))?;
        row.text(Some(step.queue))?;
        row.long(Some(signed(step.number.0)))?;
        row.lossy(step.id)?;
        row.flag(content.high_priority)?;
        row.int(Some(content.content_type.into()))?;
        row.who(step.producer)?;
        row.headers(content.headers)?;
        row.long(Some(signed(step.header_bytes)))?;
        row.bytes(content.body)?;
        row.long(Some(signed(step.body_bytes)))
    }

    /// Adds a message of a journal as a row of [`Table::Stored`].
    ///
    /// # Errors
    /// The same as [`Self::push_step`].
    pub fn push_stored(
        &mut self,
        shard: u32,
        sequence: Sequence,
        put: &PutMessage,
        progress: DeliveryProgress,
    ) -> Result<(), ArrowError> {
        let message = &put.message;
        let number = put.number.0;
        let mut row = self.row(120 + message.headers().len() + message.body().len());
        row.time(put.received.0)?;
        row.int(Some(shard.cast_signed()))?;
        row.long(Some(signed(sequence.0)))?;
        row.text(Some(&put.queue.to_string()))?;
        row.long((number > 0).then(|| signed(number)))?;
        row.lossy(Some(message.id()))?;
        row.lossy(Some(message.source()))?;
        row.flag(message.properties().high_priority)?;
        row.int(Some(message.properties().content_type.into()))?;
        row.int(Some(progress.attempts.into()))?;
        row.int(Some(progress.requeues.into()))?;
        row.headers(message.headers())?;
        row.bytes(Some(message.body()))
    }

    /// Returns the rows as a batch, and starts again with none.
    ///
    /// # Errors
    /// The same as [`Self::push_step`].
    pub fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let columns: Vec<ArrayRef> =
            self.columns.iter_mut().flatten().map(|column| column.finish()).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
    }

    fn row(&mut self, bytes: usize) -> Row<'_> {
        self.rows += 1;
        self.bytes += bytes;
        Row { columns: self.columns.iter_mut() }
    }
}

/// Numbers beyond 63 bits do not occur, because they count messages and bytes.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A column under construction.
enum Column {
    Time(TimestampMicrosecondBuilder),
    Int(Int32Builder),
    Long(Int64Builder),
    Flag(BooleanBuilder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Pairs(ListBuilder<StructBuilder>),
    Ranges(ListBuilder<StructBuilder>),
}

impl Column {
    fn new(kind: &DataType) -> Self {
        match kind {
            DataType::Timestamp(..) => Self::Time(times(0)),
            DataType::Int32 => Self::Int(Int32Builder::with_capacity(0)),
            DataType::Int64 => Self::Long(Int64Builder::with_capacity(0)),
            DataType::Boolean => Self::Flag(BooleanBuilder::with_capacity(0)),
            DataType::Binary => Self::Bytes(BinaryBuilder::with_capacity(0, 0)),
            DataType::List(element) if *element.data_type() == DataType::Struct(range()) => {
                let pair: Vec<Box<dyn ArrayBuilder>> =
                    vec![Box::new(Int64Builder::with_capacity(0)), Box::new(Int64Builder::with_capacity(0))];
                let ranges = StructBuilder::new(range(), pair);
                Self::Ranges(ListBuilder::with_capacity(ranges, 0).with_field(Arc::clone(element)))
            }
            DataType::List(element) => {
                let pair: Vec<Box<dyn ArrayBuilder>> = vec![
                    Box::new(StringBuilder::with_capacity(0, 0)),
                    Box::new(BinaryBuilder::with_capacity(0, 0)),
                ];
                let pairs = StructBuilder::new(header(), pair);
                Self::Pairs(ListBuilder::with_capacity(pairs, 0).with_field(Arc::clone(element)))
            }
            _ => Self::Text(StringBuilder::with_capacity(0, 0)),
        }
    }

    /// Returns the values. The new builder has the same capacity, so that it need not grow step by step again.
    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Time(column) => {
                let full = column.finish();
                *column = times(full.len());
                Arc::new(full)
            }
            Self::Int(column) => {
                let full = column.finish();
                *column = Int32Builder::with_capacity(full.len());
                Arc::new(full)
            }
            Self::Long(column) => {
                let full = column.finish();
                *column = Int64Builder::with_capacity(full.len());
                Arc::new(full)
            }
            Self::Flag(column) => Arc::new(column.finish()),
            Self::Text(column) => {
                let full = column.finish();
                *column = StringBuilder::with_capacity(full.len(), full.values().len());
                Arc::new(full)
            }
            Self::Bytes(column) => {
                let full = column.finish();
                *column = BinaryBuilder::with_capacity(full.len(), full.values().len());
                Arc::new(full)
            }
            Self::Pairs(column) | Self::Ranges(column) => Arc::new(column.finish()),
        }
    }
}

fn times(rows: usize) -> TimestampMicrosecondBuilder {
    TimestampMicrosecondBuilder::with_capacity(rows).with_timezone("UTC")
}

fn unfit() -> ArrowError {
    ArrowError::SchemaError("a row does not match the columns of its table".to_owned())
}

/// One row, written column by column.
struct Row<'a> {
    columns: std::slice::IterMut<'a, Option<Column>>,
}

/// Returns the next column of a row with the expected type; `None`: the column is omitted.
macro_rules! next {
    ($row:expr, $kind:ident) => {
        match $row.next()? {
            None => None,
            Some(Column::$kind(column)) => Some(column),
            Some(_) => return Err(unfit()),
        }
    };
}

impl Row<'_> {
    fn next(&mut self) -> Result<Option<&mut Column>, ArrowError> {
        self.columns.next().map(Option::as_mut).ok_or_else(unfit)
    }

    fn placed(&mut self, time_ms: u64, place: StepPlace) -> Result<(), ArrowError> {
        self.time(time_ms)?;
        self.int(Some(place.shard.cast_signed()))?;
        self.long(Some(signed(place.note)))?;
        self.int(Some(place.position.cast_signed()))
    }

    fn time(&mut self, ms: u64) -> Result<(), ArrowError> {
        if let Some(column) = next!(self, Time) {
            column.append_value(signed(ms.saturating_mul(1000)));
        }
        Ok(())
    }

    fn int(&mut self, value: Option<i32>) -> Result<(), ArrowError> {
        if let Some(column) = next!(self, Int) {
            column.append_option(value);
        }
        Ok(())
    }

    fn long(&mut self, value: Option<i64>) -> Result<(), ArrowError> {
        if let Some(column) = next!(self, Long) {
            column.append_option(value);
        }
        Ok(())
    }

    fn flag(&mut self, value: bool) -> Result<(), ArrowError> {
        if let Some(column) = next!(self, Flag) {
            column.append_value(value);
        }
        Ok(())
    }

    /// Empty text becomes null.
    fn text(&mut self, value: Option<&str>) -> Result<(), ArrowError> {
        if let Some(column) = next!(self, Text) {
            column.append_option(value.filter(|text| !text.is_empty()));
        }
        Ok(())
    }

    /// Converts bytes to text and replaces invalid UTF-8.
    fn lossy(&mut self, value: Option<&[u8]>) -> Result<(), ArrowError> {
        match value.map(std::str::from_utf8) {
            Some(Err(_)) => self.text(value.map(String::from_utf8_lossy).as_deref()),
            text => self.text(text.and_then(Result::ok)),
        }
    }

    fn bytes(&mut self, value: Option<&[u8]>) -> Result<(), ArrowError> {
        if let Some(column) = next!(self, Bytes) {
            column.append_option(value);
        }
        Ok(())
    }

    fn who(&mut self, who: Option<ClientView<'_>>) -> Result<(), ArrowError> {
        self.text(who.map(|who| who.id))?;
        self.text(who.map(|who| who.name))?;
        self.text(who.map(|who| who.kind))?;
        self.text(who.map(|who| who.protocol))
    }

    fn ranges(&mut self, numbers: Option<NumberRanges<'_>>) -> Result<(), ArrowError> {
        let Some(list) = next!(self, Ranges) else { return Ok(()) };
        for (first, last) in numbers.iter().flat_map(NumberRanges::iter) {
            let range = list.values();
            for (index, number) in [first, last].into_iter().enumerate() {
                if let Some(numbers) = range.field_builder::<Int64Builder>(index) {
                    numbers.append_value(signed(number));
                }
            }
            range.append(true);
        }
        list.append(numbers.is_some());
        Ok(())
    }

    fn headers(&mut self, text: &[u8]) -> Result<(), ArrowError> {
        let Some(list) = next!(self, Pairs) else { return Ok(()) };
        for (key, value) in pairs(text) {
            let pair = list.values();
            if let Some(keys) = pair.field_builder::<StringBuilder>(0) {
                keys.append_value(String::from_utf8_lossy(key));
            }
            if let Some(values) = pair.field_builder::<BinaryBuilder>(1) {
                values.append_value(value);
            }
            pair.append(true);
        }
        list.append(true);
        Ok(())
    }
}

/// Splits header text into pairs of key and value. A line without a colon is a key with an empty value.
fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()).map(|line| {
        match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (line[..colon].trim_ascii_end(), line[colon + 1..].trim_ascii_start()),
            None => (line, &[][..]),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_text_is_split_into_pairs() {
        let text = b"Key:value\r\nTwice: a:b \r\n\r\nalone\r\n:empty\r\n";
        let found: Vec<_> = pairs(text).collect();
        let expected: [(&[u8], &[u8]); 4] =
            [(b"Key", b"value"), (b"Twice", b"a:b"), (b"alone", b""), (b"", b"empty")];
        assert_eq!(found, expected);
    }

    #[test]
    fn columns_with_special_encoding_exist() {
        let tables = [Table::Messages, Table::Steps, Table::Stored].map(Table::schema);
        for name in REPEATING.iter().chain(&ASCENDING).chain(&OPAQUE) {
            assert!(tables.iter().any(|schema| schema.field_with_name(name).is_ok()), "{name}");
        }
    }
}
