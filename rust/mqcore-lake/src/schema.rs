//! The columns of the archive's tables in Iceberg's terms: types, field ids, partitions and sort order.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema as ArrowSchema};
use iceberg::spec::{
    Datum, ListType, Literal, NestedField, NestedFieldRef, NullOrder, PrimitiveLiteral, PrimitiveType,
    Schema, SortDirection, SortField, SortOrder, Struct, StructType, Transform, Type, UnboundPartitionSpec,
};
use iceberg::transform::{BoxedTransformFunction, create_transform_function};
use mqcore_archive::tables::Table;
use parquet::arrow::{ArrowSchemaConverter, PARQUET_FIELD_ID_META_KEY};
use parquet::schema::types::SchemaDescriptor;

use crate::error::LakeError;

/// Columns by which the rows of a file are sorted.
const ORDER: [&str; 3] = ["queue", "note", "position"];

/// Returns the schema of a table. A new table gets the ids 1, 2, ... in the order of its columns, then those of nested
/// fields.
pub(crate) fn iceberg_schema(table: Table) -> Result<Schema, LakeError> {
    let mut next = table.schema().fields().len() as i32;
    let mut fields: Vec<NestedFieldRef> = Vec::new();
    for (index, field) in table.schema().fields().iter().enumerate() {
        let kind = type_of(field.data_type(), &mut next, table)?;
        let field = NestedField::new(index as i32 + 1, field.name(), kind, !field.is_nullable());
        fields.push(Arc::new(field));
    }
    Ok(Schema::builder().with_fields(fields).build()?)
}

fn type_of(kind: &DataType, next: &mut i32, table: Table) -> Result<Type, LakeError> {
    let primitive = match kind {
        DataType::Boolean => PrimitiveType::Boolean,
        DataType::Int32 => PrimitiveType::Int,
        DataType::Int64 => PrimitiveType::Long,
        DataType::Utf8 => PrimitiveType::String,
        DataType::Binary => PrimitiveType::Binary,
        DataType::Timestamp(..) => PrimitiveType::Timestamptz,
        DataType::List(element) => {
            *next += 1;
            let id = *next;
            let element_type = type_of(element.data_type(), next, table)?;
            let element = NestedField::list_element(id, element_type, !element.is_nullable());
            return Ok(Type::List(ListType::new(Arc::new(element))));
        }
        DataType::Struct(fields) => {
            let first = *next + 1;
            *next += fields.len() as i32;
            let mut nested: Vec<NestedFieldRef> = Vec::new();
            for (index, field) in fields.iter().enumerate() {
                let kind = type_of(field.data_type(), next, table)?;
                let field = NestedField::new(first + index as i32, field.name(), kind, !field.is_nullable());
                nested.push(Arc::new(field));
            }
            return Ok(Type::Struct(StructType::new(nested)));
        }
        other => {
            let why = format!("a column has the type {other}, for which Iceberg has none");
            return Err(LakeError::Table { location: table.as_str().to_owned(), why });
        }
    };
    Ok(Type::Primitive(primitive))
}

/// Returns the columns that a table lacks, with fresh ids. All of them are optional, because earlier files lack them.
///
/// # Errors
/// [`LakeError::Table`] if a column has another type.
pub(crate) fn missing_columns(
    table: Table,
    current: &Schema,
    last_id: i32,
) -> Result<Vec<NestedFieldRef>, LakeError> {
    let mut next = last_id;
    let mut missing: Vec<NestedFieldRef> = Vec::new();
    for field in table.schema().fields() {
        let wanted = type_of(field.data_type(), &mut 0, table)?;
        match current.field_by_name(field.name()) {
            Some(found) if same_type(&found.field_type, &wanted) => {}
            Some(found) => {
                let why = format!("its column {} has the type {}", field.name(), found.field_type);
                return Err(LakeError::Table { location: table.as_str().to_owned(), why });
            }
            None => {
                next += 1;
                let id = next;
                let kind = type_of(field.data_type(), &mut next, table)?;
                missing.push(Arc::new(NestedField::optional(id, field.name(), kind)));
            }
        }
    }
    Ok(missing)
}

/// Compares types without their ids.
fn same_type(left: &Type, right: &Type) -> bool {
    match (left, right) {
        (Type::Primitive(left), Type::Primitive(right)) => left == right,
        (Type::List(left), Type::List(right)) => {
            same_type(&left.element_field.field_type, &right.element_field.field_type)
        }
        (Type::Struct(left), Type::Struct(right)) => {
            let (left, right) = (left.fields(), right.fields());
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| {
                    left.name == right.name && same_type(&left.field_type, &right.field_type)
                })
        }
        _ => false,
    }
}

/// Returns the schema of a table's Parquet files, in which each column has its Iceberg field id.
pub(crate) fn parquet_schema(table: Table, schema: &Schema) -> Result<SchemaDescriptor, LakeError> {
    let fields: Result<Vec<_>, _> = table
        .schema()
        .fields()
        .iter()
        .map(|field| {
            let found = schema.field_by_name(field.name()).ok_or_else(|| LakeError::Table {
                location: table.as_str().to_owned(),
                why: format!("it has no column {}", field.name()),
            })?;
            Ok::<_, LakeError>(with_id(field, found))
        })
        .collect();
    let schema = ArrowSchema::new(fields?);
    Ok(ArrowSchemaConverter::new().schema_root("table").convert(&schema)?)
}

fn with_id(field: &Field, found: &NestedField) -> Field {
    let kind = match (field.data_type(), found.field_type.as_ref()) {
        (DataType::List(element), Type::List(list)) => {
            DataType::List(Arc::new(with_id(element, &list.element_field)))
        }
        (DataType::Struct(fields), Type::Struct(found)) => {
            let fields: Fields =
                fields.iter().zip(found.fields()).map(|(field, found)| with_id(field, found)).collect();
            DataType::Struct(fields)
        }
        (kind, _) => kind.clone(),
    };
    let id = HashMap::from([(PARQUET_FIELD_ID_META_KEY.to_owned(), found.id.to_string())]);
    Field::new(field.name(), kind, field.is_nullable()).with_metadata(id)
}

/// Returns the partitions of a new table: the UTC day of a row, and a hash of its queue.
pub(crate) fn partition_spec(schema: &Schema, buckets: u32) -> Result<UnboundPartitionSpec, LakeError> {
    let spec = UnboundPartitionSpec::builder()
        .add_partition_field(field_id(schema, "time"), "time_day", Transform::Day)?
        .add_partition_field(field_id(schema, "queue"), "queue_bucket", Transform::Bucket(buckets))?
        .build();
    Ok(spec)
}

/// Returns the order of the rows in each file.
pub(crate) fn sort_order(schema: &Schema) -> Result<SortOrder, LakeError> {
    let mut order = SortOrder::builder();
    for name in ORDER {
        order.with_sort_field(SortField {
            source_id: field_id(schema, name),
            transform: Transform::Identity,
            direction: SortDirection::Ascending,
            null_order: NullOrder::First,
        });
    }
    Ok(order.build_unbound()?)
}

/// Returns the id of a column, or 0, which no column has.
pub(crate) fn field_id(schema: &Schema, name: &str) -> i32 {
    schema.field_id_by_name(name).unwrap_or(0)
}

/// The partition of some rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TablePartition {
    /// Days since 1970-01-01.
    pub(crate) day: u32,
    /// Hash of the queue; `None` for events of a whole shard.
    pub(crate) bucket: Option<u32>,
}

impl TablePartition {
    /// The values as Iceberg stores them.
    pub(crate) fn values(self) -> Struct {
        let bucket = self.bucket.map(|bucket| Literal::int(bucket.cast_signed()));
        Struct::from_iter([Some(Literal::date(self.day.cast_signed())), bucket])
    }

    /// The partition with these values; `None`: another program has changed the partitions of the table.
    pub(crate) fn of(values: &Struct) -> Option<Self> {
        let [day, bucket] = values.fields() else { return None };
        let number = |literal: &Literal| match literal.as_primitive_literal() {
            Some(PrimitiveLiteral::Int(number)) => u32::try_from(number).ok(),
            _ => None,
        };
        let bucket = match bucket {
            None => None,
            Some(bucket) => Some(number(bucket)?),
        };
        Some(Self { day: number(day.as_ref()?)?, bucket })
    }
}

/// Iceberg's hash of queue names.
pub(crate) struct Buckets(BoxedTransformFunction);

impl std::fmt::Debug for Buckets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Buckets")
    }
}

impl Buckets {
    pub(crate) fn new(buckets: u32) -> Result<Self, LakeError> {
        Ok(Self(create_transform_function(&Transform::Bucket(buckets))?))
    }

    /// Returns the bucket of a queue; `None` for the empty name, which stands for a whole shard.
    pub(crate) fn of(&self, queue: &str) -> Result<Option<u32>, LakeError> {
        if queue.is_empty() {
            return Ok(None);
        }
        let bucket = self.0.transform_literal(&Datum::string(queue))?;
        Ok(bucket.and_then(|bucket| match bucket.literal() {
            PrimitiveLiteral::Int(number) => u32::try_from(*number).ok(),
            _ => None,
        }))
    }
}
