//! What analysts are shown: names and types of columns, and how each is made of a table's.
//!
//! Every column may be null and none is dictionary-encoded or "large", because that is what Spark compares a batch with.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use crate::tables::Table;

/// What a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// A message that came to a queue, with its content.
    Messages,
    /// A step of a message's life.
    Steps,
}

/// How many rows of one note can be told apart: the lower bits of a sequence are the place within the note.
pub const POSITION_BITS: u32 = 20;

/// Where a row stands among all rows of its shard.
pub fn sequence(note: u64, position: u32) -> u64 {
    (note << POSITION_BITS) | u64::from(position & ((1 << POSITION_BITS) - 1))
}

/// The note of a sequence.
pub fn note_of(sequence: u64) -> u64 {
    sequence >> POSITION_BITS
}

/// When a column is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Unless columns are named.
    Default,
    /// If headers are asked for.
    Headers,
    /// If everything that is known is asked for.
    Meta,
    /// Only if it is named: what another column says under the name that Kafka's source has for it.
    Alias,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Same(&'static str),
    /// Text as bytes.
    Bytes(&'static str),
    /// Bytes as text; what is no UTF-8 in them is replaced.
    Text(&'static str),
    Channel,
    QueueId,
    Sequence,
    Zero,
}

/// One column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// When it is shown.
    pub group: Group,
    /// Its type, in Spark's words.
    pub spark_type: &'static str,
    source: Source,
}

const fn column(name: &'static str, group: Group, spark_type: &'static str, source: Source) -> Column {
    Column { name, group, spark_type, source }
}

const fn same(name: &'static str, group: Group, spark_type: &'static str) -> Column {
    column(name, group, spark_type, Source::Same(name))
}

const BINARY: &str = "binary";
const HEADERS: &str = "array<struct<key:string,value:binary>>";

/// Columns of [`View::Messages`].
const MESSAGES: &[Column] = &[
    column("key", Group::Default, BINARY, Source::Bytes("message_id")),
    column("value", Group::Default, BINARY, Source::Same("body")),
    column("channel", Group::Default, "string", Source::Channel),
    column("queue_id", Group::Default, "int", Source::QueueId),
    column("sequence", Group::Default, "bigint", Source::Sequence),
    column("timestamp", Group::Default, "timestamp", Source::Same("time")),
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
    column("topic", Group::Alias, "string", Source::Same("queue")),
    column("queue", Group::Alias, "string", Source::Same("queue")),
    column("partition", Group::Alias, "int", Source::Same("shard")),
    column("offset", Group::Alias, "bigint", Source::Sequence),
    column("timestampType", Group::Alias, "int", Source::Zero),
];

/// Columns of [`View::Steps`].
const STEPS: &[Column] = &[
    column("timestamp", Group::Default, "timestamp", Source::Same("time")),
    same("shard", Group::Default, "int"),
    column("sequence", Group::Default, "bigint", Source::Sequence),
    same("kind", Group::Default, "string"),
    column("channel", Group::Default, "string", Source::Channel),
    column("queue_id", Group::Default, "int", Source::QueueId),
    same("number", Group::Default, "bigint"),
    same("message_id", Group::Default, "string"),
    same("attempt", Group::Default, "int"),
    same("last", Group::Default, "boolean"),
    same("reason", Group::Default, "string"),
    same("target", Group::Default, "string"),
    same("header_bytes", Group::Default, "bigint"),
    same("body_bytes", Group::Default, "bigint"),
    same("missing", Group::Default, "bigint"),
    same("producer_id", Group::Meta, "string"),
    same("producer_name", Group::Meta, "string"),
    same("producer_type", Group::Meta, "string"),
    same("producer_protocol", Group::Meta, "string"),
    same("consumer_id", Group::Meta, "string"),
    same("consumer_name", Group::Meta, "string"),
    same("consumer_type", Group::Meta, "string"),
    same("consumer_protocol", Group::Meta, "string"),
    column("queue", Group::Alias, "string", Source::Same("queue")),
    column("topic", Group::Alias, "string", Source::Same("queue")),
    column("partition", Group::Alias, "int", Source::Same("shard")),
    column("offset", Group::Alias, "bigint", Source::Sequence),
];

impl View {
    /// The table that it is made of.
    pub fn table(self) -> Table {
        match self {
            Self::Messages => Table::Messages,
            Self::Steps => Table::Steps,
        }
    }

    /// Everything that it can show.
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Messages => MESSAGES,
            Self::Steps => STEPS,
        }
    }
}

/// Some columns, in an order of the reader's.
#[derive(Debug, Clone)]
pub struct Shape {
    view: View,
    columns: Vec<Column>,
    schema: SchemaRef,
}

impl Shape {
    /// Looks columns up by name. Those of bytes that `texts` names are text instead.
    ///
    /// # Errors
    /// In words: which is unknown or cannot be text, and what there is.
    pub fn new(view: View, names: &[String], texts: &[String]) -> Result<Self, String> {
        let find = |name: &String| {
            let found = view.columns().iter().find(|column| column.name == name).copied();
            found.ok_or_else(|| {
                let known: Vec<_> = view.columns().iter().map(|column| column.name).collect();
                format!("there is no column {name:?}; there are {}", known.join(", "))
            })
        };
        let found = |name| find(name).and_then(|column| column.told_as(texts.contains(name)));
        let columns = names.iter().map(found).collect::<Result<Vec<_>, _>>()?;
        let table = view.table().schema();
        let fields = columns.iter().map(|column| Field::new(column.name, column.kind(&table), true));
        let fields: Vec<_> = fields.collect();
        Ok(Self { view, columns, schema: Arc::new(Schema::new(fields)) })
    }

    /// What a row is.
    pub fn view(&self) -> View {
        self.view
    }

    /// The schema of its batches.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Whether it is made of this column of its table, among others.
    pub fn needs(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.needs().contains(&name))
    }

    /// Makes its columns of a table's, of which those that it needs are there.
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
            Err(ArrowError::SchemaError(format!("the column {name} is {found} and not {wanted}")))
        });
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        RecordBatch::try_new_with_options(self.schema(), made.collect::<Result<_, _>>()?, &options)
    }
}

impl Column {
    fn told_as(self, text: bool) -> Result<Self, String> {
        let source = match self.source {
            source if !text => source,
            Source::Bytes(name) => Source::Same(name),
            Source::Same(name) if self.spark_type == BINARY => Source::Text(name),
            _ => return Err(format!("the column {} has no bytes that could be text", self.name)),
        };
        Ok(Self { source, ..self })
    }

    fn kind(&self, table: &Schema) -> DataType {
        match self.source {
            Source::Same(name) => {
                table.field_with_name(name).map_or(DataType::Null, |field| field.data_type().clone())
            }
            Source::Bytes(_) => DataType::Binary,
            Source::Channel | Source::Text(_) => DataType::Utf8,
            Source::QueueId | Source::Zero => DataType::Int32,
            Source::Sequence => DataType::Int64,
        }
    }

    fn needs(&self) -> &[&'static str] {
        match &self.source {
            Source::Same(name) | Source::Bytes(name) | Source::Text(name) => std::slice::from_ref(name),
            Source::Channel | Source::QueueId => &["queue"],
            Source::Sequence => &["note", "position"],
            Source::Zero => &[],
        }
    }

    fn make(&self, rows: &RecordBatch) -> Result<ArrayRef, ArrowError> {
        Ok(match self.source {
            Source::Same(name) => Arc::clone(named(rows, name)?),
            Source::Bytes(name) => Arc::new(BinaryArray::from(text(rows, name)?.clone())),
            Source::Text(name) => Arc::new(as_text(named(rows, name)?, name)?),
            Source::Channel => Arc::new(channels(rows)?),
            Source::QueueId => Arc::new(queue_ids(rows)?),
            Source::Sequence => Arc::new(sequences(rows)?),
            Source::Zero => Arc::new(Int32Array::from_value(0, rows.num_rows())),
        })
    }
}

fn named<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, ArrowError> {
    rows.column_by_name(name)
        .ok_or_else(|| ArrowError::SchemaError(format!("the column {name} is missing in the table")))
}

fn other_type(name: &str) -> ArrowError {
    ArrowError::SchemaError(format!("the column {name} has another type than it should"))
}

pub(super) fn text<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a StringArray, ArrowError> {
    named(rows, name)?.as_string_opt::<i32>().ok_or_else(|| other_type(name))
}

/// Note and place of each row as one number that ascends.
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

/// Shows for each row what its queue's name says. Rows of one queue follow each other, so most names are taken apart once.
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
    fn bytes_that_are_no_text_harm_no_other_row_where_text_is_wanted() {
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
    fn each_row_has_the_channel_and_the_id_of_its_own_queue() {
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
