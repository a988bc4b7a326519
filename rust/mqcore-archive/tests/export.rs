//! Files of exported rows: what they contain, and how much of it waits in memory.

use std::io::Cursor;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_ipc::reader::StreamReader;
use mqcore_archive::export::{Exporter, Format};
use mqcore_archive::tables::{StepPlace, Table};
use mqcore_broker::history::Block;
use mqcore_broker::history::reader::each_step;
use mqcore_broker::model::time::Timestamp;

/// Rows of a batch, and at most as many bytes.
const BATCH_ROWS: usize = 16 * 1024;

/// Exports `count` gaps, and returns the batches of the file.
fn exported(count: u64) -> Vec<RecordBatch> {
    let mut exporter = Exporter::new(Format::Arrow, Table::Steps, Vec::new()).expect("memory");
    for note in 0..count {
        assert_eq!(exporter.count(), note);
        let block = Block::gap(Timestamp(note), note + 1);
        let place = StepPlace { shard: 0, note, position: 0 };
        each_step(&block.bytes, &mut |step| exporter.rows.push_step(place, &step).expect("it fits"))
            .expect("just written");
        exporter.advance().expect("memory");
        assert!(exporter.rows.len() < BATCH_ROWS, "no more than a batch waits");
    }
    let (rows, file) = exporter.finish().expect("memory");
    assert_eq!(rows, count);
    let reader = StreamReader::try_new(Cursor::new(file), None).expect("a stream");
    reader.map(|batch| batch.expect("a batch")).collect()
}

#[test]
fn batches_have_a_fixed_number_of_rows_and_all_rows_are_there_in_order() {
    for (count, sizes) in [
        (0, vec![]),
        (1, vec![1]),
        (BATCH_ROWS, vec![BATCH_ROWS]),
        (2 * BATCH_ROWS + 5, vec![BATCH_ROWS, BATCH_ROWS, 5]),
    ] {
        let batches = exported(count as u64);
        assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), sizes);
        let missing = batches.iter().flat_map(|batch| {
            let column = batch.column_by_name("missing").expect("a column of steps");
            column.as_primitive::<Int64Type>().values().to_vec()
        });
        assert!(missing.eq(1..=i64::try_from(count).expect("few")));
    }
}
