//! Rows of files, with the columns and types of mqcore's tables.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch, RecordBatchOptions, StructArray};
use arrow_schema::{ArrowError, DataType, Field, Schema};

use crate::tables::Table;

/// Returns rows of a file with the columns of a table, in their order and with their types. Columns that the file lacks are
/// null. Files of Iceberg tables differ in the metadata of their columns, and earlier versions wrote fewer columns.
///
/// # Errors
/// A column has another type, or may not be null and is missing.
pub fn conform(rows: &RecordBatch, table: Table) -> Result<RecordBatch, ArrowError> {
    let schema = table.schema();
    let columns: Result<Vec<ArrayRef>, ArrowError> = schema
        .fields()
        .iter()
        .map(|field| match rows.column_by_name(field.name()) {
            Some(column) => retyped(column, field.data_type()),
            None => Ok(arrow_array::new_null_array(field.data_type(), rows.num_rows())),
        })
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(schema, columns?, &options)
}

/// Returns rows of a file of any table with the types that mqcore uses. Files of Iceberg tables number their columns.
///
/// # Errors
/// A column has another type.
pub fn plain(rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let named = |name: &str| {
        [Table::Messages, Table::Steps]
            .iter()
            .find_map(|table| table.schema().field_with_name(name).ok().cloned())
    };
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in rows.schema_ref().fields().iter().zip(rows.columns()) {
        let known = named(field.name()).unwrap_or_else(|| Field::clone(field));
        columns.push(retyped(column, known.data_type())?);
        fields.push(known.with_nullable(field.is_nullable()));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
}

/// Returns a column with the names and metadata that `kind` gives to nested fields.
fn retyped(column: &ArrayRef, kind: &DataType) -> Result<ArrayRef, ArrowError> {
    if column.data_type() == kind {
        return Ok(Arc::clone(column));
    }
    match (kind, column.as_list_opt::<i32>(), column.as_struct_opt()) {
        (DataType::List(element), Some(list), _) => {
            let values = retyped(list.values(), element.data_type())?;
            let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
            Ok(Arc::new(ListArray::try_new(Arc::clone(element), offsets, values, nulls)?))
        }
        (DataType::Struct(fields), _, Some(values)) => {
            let columns: Result<Vec<_>, _> = fields
                .iter()
                .zip(values.columns())
                .map(|(field, column)| retyped(column, field.data_type()))
                .collect();
            Ok(Arc::new(StructArray::try_new(fields.clone(), columns?, values.nulls().cloned())?))
        }
        _ => {
            Err(ArrowError::SchemaError(format!("a column has the type {}, not {kind}", column.data_type())))
        }
    }
}
