//! The views for analysis: the names and types of their columns, and how each is derived from a table.
//!
//! All columns are nullable, and none is dictionary-encoded or "large", because Spark compares batches with such a schema.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use crate::tables::Table;

/// A view of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// One row per message that arrived in a queue, with its content.
    Messages,
    /// One row per lifecycle event of a message.
    Steps,
}

/// Number of low bits of a sequence that hold the position within the note.
pub const POSITION_BITS: u32 = 20;

/// Returns the sequence of a row within its shard.
pub fn sequence(note: u64, position: u32) -> u64 {
    (note << POSITION_BITS) | u64::from(position & ((1 << POSITION_BITS) - 1))
}

/// Returns the note number of a sequence.
pub fn note_of(sequence: u64) -> u64 {
    sequence >> POSITION_BITS
}

/// When a column is included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Unless columns are selected by name.
    Default,
    /// If headers are requested.
    Headers,
    /// If all metadata is requested.
    Meta,
    /// Only by name: the content of another column under the name used by Kafka's source.
    Alias,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnSource {
    Same(&'static str),
    /// Text, converted to bytes.
    Bytes(&'static str),
    /// Bytes, converted to text; invalid UTF-8 is replaced.
    Text(&'static str),
    Channel,
    QueueId,
    Sequence,
    Zero,
}

/// A column of a view.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Name.
    pub name: &'static str,
    /// When it is included.
    pub group: Group,
    /// Spark type.
    pub spark_type: &'static str,
    source: ColumnSource,
}

const fn column(name: &'static str, group: Group, spark_type: &'static str, source: ColumnSource) -> Column {
    Column { name, group, spark_type, source }
}

const fn same(name: &'static str, group: Group, spark_type: &'static str) -> Column {
    column(name, group, spark_type, ColumnSource::Same(name))
}

const BINARY: &str = "binary";
const HEADERS: &str = "array<struct<key:string,value:binary>>";
const NUMBERS: &str = "array<struct<first:bigint,last:bigint>>";

/// Columns of [`View::Messages`].
const MESSAGES: &[Column] = &[
    column("key", Group::Default, BINARY, ColumnSource::Bytes("message_id")),
    column("value", Group::Default, BINARY, ColumnSource::Same("body")),
    column("channel", Group::Default, "string", ColumnSource::Channel),
    column("queue_id", Group::Default, "int", ColumnSource::QueueId),
    column("sequence", Group::Default, "bigint", ColumnSource::Sequence),
    column("timestamp", Group::Default, "timestamp", ColumnSource::Same("time")),
    same("shard", Group::Default, "int"),
    same("headers", Group::Headers, HEADERS),
    same("kind", Group::Meta, "string"),
    same("number", Group::Meta, "bigint"),
    same("message_id", Group::Meta, "string"),
    same("high_priority", Group::Meta, "boolean"),
    same("content_type", Group::Meta, "int"),
    same("producer_id", Group::Meta, "string"),
    same("producer_name", Group::Meta, "string"),
    same("producer_type", Group::Meta, "string"),
    same("producer_protocol", Group::Meta, "string"),
    same("header_bytes", Group::Meta, "bigint"),
    same("body_bytes", Group::Meta, "bigint"),
    column("topic", Group::Alias, "string", ColumnSource::Same("queue")),
    column("queue", Group::Alias, "string", ColumnSource::Same("queue")),
    column("partition", Group::Alias, "int", ColumnSource::Same("shard")),
    column("offset", Group::Alias, "bigint", ColumnSource::Sequence),
    column("timestampType", Group::Alias, "int", ColumnSource::Zero),
];

/// Columns of [`View::Steps`].
const STEPS: &[Column] = &[
    column("timestamp", Group::Default, "timestamp", ColumnSource::Same("time")),
    same("shard", Group::Default, "int"),
    column("sequence", Group::Default, "bigint", ColumnSource::Sequence),
    same("kind", Group::Default, "string"),
    column("channel", Group::Default, "string", ColumnSource::Channel),
    column("queue_id", Group::Default, "int", ColumnSource::QueueId),
    same("number", Group::Default, "bigint"),
    same("message_id", Group::Default, "string"),
    same("attempt", Group::Default, "int"),
    same("last", Group::Default, "boolean"),
    same("reason", Group::Default, "string"),
    same("target", Group::Default, "string"),
    same("header_bytes", Group::Default, "bigint"),
    same("body_bytes", Group::Default, "bigint"),
    same("missing", Group::Default, "bigint"),
    same("messages", Group::Default, "bigint"),
    same("numbers", Group::Default, NUMBERS),
    same("producer_id", Group::Meta, "string"),
    same("producer_name", Group::Meta, "string"),
    same("producer_type", Group::Meta, "string"),
    same("producer_protocol", Group::Meta, "string"),
    same("consumer_id", Group::Meta, "string"),
    same("consumer_name", Group::Meta, "string"),
    same("consumer_type", Group::Meta, "string"),
    same("consumer_protocol", Group::Meta, "string"),
    column("queue", Group::Alias, "string", ColumnSource::Same("queue")),
    column("topic", Group::Alias, "string", ColumnSource::Same("queue")),
    column("partition", Group::Alias, "int", ColumnSource::Same("shard")),
    column("offset", Group::Alias, "bigint", ColumnSource::Sequence),
];

impl View {
    /// Table from which the view is derived.
    pub fn table(self) -> Table {
        match self {
            Self::Messages => Table::Messages,
            Self::Steps => Table::Steps,
        }
    }

    /// All columns of the view.
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Messages => MESSAGES,
            Self::Steps => STEPS,
        }
    }
}

/// A selection of columns, in the order requested.
#[derive(Debug, Clone)]
pub struct Shape {
    view: View,
    columns: Vec<Column>,
    schema: SchemaRef,
}

impl Shape {
    /// Selects columns by name. Binary columns named in `texts` are converted to text.
    ///
    /// # Errors
    /// A message that names the unknown or unsuitable column, and the available ones.
    pub fn new(view: View, names: &[String], texts: &[String]) -> Result<Self, String> {
        let find = |name: &String| {
            let found = view.columns().iter().find(|column| column.name == name).copied();
            found.ok_or_else(|| {
                let known: Vec<_> = view.columns().iter().map(|column| column.name).collect();
                format!("unknown column {name:?}; available columns: {}", known.join(", "))
            })
        };
        let found = |name| find(name).and_then(|column| column.told_as(texts.contains(name)));
        let columns = names.iter().map(found).collect::<Result<Vec<_>, _>>()?;
        let table = view.table().schema();
        let fields = columns.iter().map(|column| Field::new(column.name, column.kind(&table), true));
        let fields: Vec<_> = fields.collect();
        Ok(Self { view, columns, schema: Arc::new(Schema::new(fields)) })
    }

    /// The view.
    pub fn view(&self) -> View {
        self.view
    }

    /// Schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Whether the selection requires this column of the table.
    pub fn needs(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.needs().contains(&name))
    }

    /// Derives the selected columns from rows of the table, which must contain the required columns.
    ///
    /// # Errors
    /// A column of the table is missing or has another type.
    pub fn apply(&self, rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let made = self.columns.iter().zip(self.schema.fields()).map(|(column, field)| {
            let array = column.make(rows)?;
            if array.data_type() == field.data_type() {
                return Ok(array);
            }
            let (name, found, wanted) = (column.name, array.data_type(), field.data_type());
            Err(ArrowError::SchemaError(format!(
                "the column {name} has the type {found} instead of {wanted}"
            )))
        });
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        RecordBatch::try_new_with_options(self.schema(), made.collect::<Result<_, _>>()?, &options)
    }
}

impl Column {
    fn told_as(self, text: bool) -> Result<Self, String> {
        let source = match self.source {
            source if !text => source,
            ColumnSource::Bytes(name) => ColumnSource::Same(name),
            ColumnSource::Same(name) if self.spark_type == BINARY => ColumnSource::Text(name),
            _ => return Err(format!("the column {} has no bytes that can be converted to text", self.name)),
        };
        Ok(Self { source, ..self })
    }

    fn kind(&self, table: &Schema) -> DataType {
        match self.source {
            ColumnSource::Same(name) => {
                table.field_with_name(name).map_or(DataType::Null, |field| field.data_type().clone())
            }
            ColumnSource::Bytes(_) => DataType::Binary,
            ColumnSource::Channel | ColumnSource::Text(_) => DataType::Utf8,
            ColumnSource::QueueId | ColumnSource::Zero => DataType::Int32,
            ColumnSource::Sequence => DataType::Int64,
        }
    }

    fn needs(&self) -> &[&'static str] {
        match &self.source {
            ColumnSource::Same(name) | ColumnSource::Bytes(name) | ColumnSource::Text(name) => {
                std::slice::from_ref(name)
            }
            ColumnSource::Channel | ColumnSource::QueueId => &["queue"],
            ColumnSource::Sequence => &["note", "position"],
            ColumnSource::Zero => &[],
        }
    }

    fn make(&self, rows: &RecordBatch) -> Result<ArrayRef, ArrowError> {
        Ok(match self.source {
            ColumnSource::Same(name) => Arc::clone(named(rows, name)?),
            ColumnSource::Bytes(name) => Arc::new(BinaryArray::from(text(rows, name)?.clone())),
            ColumnSource::Text(name) => Arc::new(as_text(named(rows, name)?, name)?),
            ColumnSource::Channel => Arc::new(channels(rows)?),
            ColumnSource::QueueId => Arc::new(queue_ids(rows)?),
            ColumnSource::Sequence => Arc::new(sequences(rows)?),
            ColumnSource::Zero => Arc::new(Int32Array::from_value(0, rows.num_rows())),
        })
    }
}

fn named<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, ArrowError> {
    rows.column_by_name(name)
        .ok_or_else(|| ArrowError::SchemaError(format!("the table has no column {name}")))
}

fn other_type(name: &str) -> ArrowError {
    ArrowError::SchemaError(format!("the column {name} has an unexpected type"))
}

pub(super) fn text<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a StringArray, ArrowError> {
    named(rows, name)?.as_string_opt::<i32>().ok_or_else(|| other_type(name))
}

/// Returns the sequence of each row.
pub(super) fn sequences(rows: &RecordBatch) -> Result<Int64Array, ArrowError> {
    let notes = named(rows, "note")?.as_primitive_opt::<Int64Type>().ok_or_else(|| other_type("note"))?;
    let places = named(rows, "position")?.as_primitive_opt::<Int32Type>();
    let places = places.ok_or_else(|| other_type("position"))?;
    let pairs = notes.values().iter().zip(places.values());
    Ok(pairs
        .map(|(note, place)| sequence(note.cast_unsigned(), place.cast_unsigned()).cast_signed())
        .collect())
}

fn as_text(bytes: &ArrayRef, name: &str) -> Result<StringArray, ArrowError> {
    let bytes = bytes.as_binary_opt::<i32>().ok_or_else(|| other_type(name))?;
    StringArray::try_from_binary(bytes.clone()).or_else(|_| {
        let mut made = StringBuilder::with_capacity(bytes.len(), bytes.value_data().len());
        for value in bytes {
            made.append_option(value.map(String::from_utf8_lossy));
        }
        Ok(made.finish())
    })
}

fn channels(rows: &RecordBatch) -> Result<StringArray, ArrowError> {
    let queues = text(rows, "queue")?;
    let channel = |queue| str::rsplit_once(queue, '/').map_or(queue, |(channel, _)| channel);
    let mut made = StringBuilder::with_capacity(queues.len(), queues.value_data().len());
    each_of_its_queue(queues, channel, |channel| made.append_option(channel));
    Ok(made.finish())
}

fn queue_ids(rows: &RecordBatch) -> Result<Int32Array, ArrowError> {
    let queues = text(rows, "queue")?;
    let id = |queue| str::rsplit_once(queue, '/').and_then(|(_, id)| id.parse().ok());
    let mut made = Int32Builder::with_capacity(queues.len());
    each_of_its_queue(queues, id, |id| made.append_option(id.flatten()));
    Ok(made.finish())
}

/// Calls `show` with the value that `say` derives from each row's queue name. Consecutive rows usually have the same queue, so
/// the value is cached.
fn each_of_its_queue<'a, T: Copy>(
    queues: &'a StringArray,
    say: impl Fn(&'a str) -> T,
    mut show: impl FnMut(Option<T>),
) {
    let mut last: (Option<&str>, Option<T>) = (None, None);
    for queue in queues {
        if queue != last.0 {
            last = (queue, queue.map(&say));
        }
        show(last.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_utf8_is_replaced_when_bytes_become_text() {
        let rows: ArrayRef = Arc::new(BinaryArray::from_opt_vec(vec![
            Some("Gr\u{fc}\u{df}e".as_bytes()),
            None,
            Some(b"a\xffb"),
            Some(b""),
        ]));
        let found = as_text(&rows, "body").expect("these are bytes");
        let texts: Vec<_> = found.iter().collect();
        assert_eq!(texts, [Some("Gr\u{fc}\u{df}e"), None, Some("a\u{fffd}b"), Some("")]);
        let sound: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"one", b"two"]));
        assert_eq!(as_text(&sound, "body").expect("these are bytes"), StringArray::from(vec!["one", "two"]));
    }

    #[test]
    fn rows_get_channel_and_id_of_their_queue() {
        let queues =
            StringArray::from(vec![Some("a/1"), Some("a/1"), Some("a/2"), None, Some("a/2"), Some("b")]);
        let fields = Schema::new(vec![Field::new("queue", DataType::Utf8, true)]);
        let rows = RecordBatch::try_new(Arc::new(fields), vec![Arc::new(queues)]).expect("they fit");
        let channels = channels(&rows).expect("the column is there");
        let ids = queue_ids(&rows).expect("the column is there");
        assert_eq!(
            channels.iter().collect::<Vec<_>>(),
            [Some("a"), Some("a"), Some("a"), None, Some("a"), Some("b")]
        );
        assert_eq!(ids.iter().collect::<Vec<_>>(), [Some(1), Some(1), Some(2), None, Some(2), None]);
    }
}
