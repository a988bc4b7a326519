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

/// Returns rows of a file of a table with the types that mqcore uses, because files of Iceberg tables number their columns.
/// Columns that `needs` names and the file lacks are null, because earlier versions wrote fewer columns.
///
/// # Errors
/// A column has another type.
pub fn plain(
    rows: &RecordBatch,
    table: Table,
    needs: &dyn Fn(&str) -> bool,
) -> Result<RecordBatch, ArrowError> {
    let schema = table.schema();
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in rows.schema_ref().fields().iter().zip(rows.columns()) {
        let known = schema.field_with_name(field.name()).unwrap_or(field).clone();
        columns.push(retyped(column, known.data_type())?);
        fields.push(known.with_nullable(field.is_nullable()));
    }
    let absent = |field: &&Arc<Field>| needs(field.name()) && rows.column_by_name(field.name()).is_none();
    for field in schema.fields().iter().filter(absent).filter(|field| field.is_nullable()) {
        columns.push(arrow_array::new_null_array(field.data_type(), rows.num_rows()));
        fields.push(Field::clone(field));
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

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StringArray};

    use super::*;

    /// A file of the first version of the schema, with a column of another program.
    fn first_version() -> RecordBatch {
        let fields = vec![
            Field::new("kind", DataType::Utf8, false),
            Field::new("number", DataType::Int64, true),
            Field::new("missing", DataType::Int64, true),
            Field::new("foreign", DataType::Int64, true),
        ];
        let numbers = |number| -> ArrayRef { Arc::new(Int64Array::from(vec![Some(number), None])) };
        let kinds: ArrayRef = Arc::new(StringArray::from(vec!["restored", "started"]));
        let columns = vec![kinds, numbers(7), numbers(8), numbers(9)];
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("they fit")
    }

    #[test]
    fn columns_that_a_file_of_an_earlier_version_lacks_are_null() {
        let wanted = ["kind", "number", "messages", "numbers"];
        let rows =
            plain(&first_version(), Table::Steps, &|name| wanted.contains(&name)).expect("it is readable");
        for name in ["messages", "numbers"] {
            let column = rows.column_by_name(name).expect("it was added");
            assert_eq!(column.null_count(), 2);
            let schema = Table::Steps.schema();
            assert_eq!(column.data_type(), schema.field_with_name(name).expect("a column").data_type());
        }
        assert_eq!(rows.num_columns(), 6, "columns that nobody needs are not added");
        let missing = plain(&first_version(), Table::Steps, &|name| name == "time").expect("readable");
        assert!(missing.column_by_name("time").is_none(), "a required column is never made up");
    }
}
