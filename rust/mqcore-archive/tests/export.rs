//! Files of exported rows: what they contain, and how much of it waits in memory.

use std::io::Cursor;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use mqcore_archive::export::{Exporter, Format};
use mqcore_archive::tables::{Rows, StepPlace, Table};
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

#[test]
fn messages_that_a_restart_restored_are_one_row_with_ranges_of_numbers() {
    // Version, time, the name of a queue, and its messages 5 to 1004 and 2000.
    let block = [&[3, 9, 0x02, 3][..], b"a/0", &[0x06, 0, 2, 5, 0xe7, 0x07, 0xe4, 0x07, 0], &[0x04]].concat();
    let mut rows = Rows::new(Table::Steps);
    let mut position = 0;
    each_step(&block, &mut |step| {
        rows.push_step(StepPlace { shard: 0, note: 1, position }, &step).expect("it fits");
        position += 1;
    })
    .expect("well-formed");
    let batch = rows.take().expect("it fits");
    let long = |name: &str| batch.column_by_name(name).expect("a column").as_primitive::<Int64Type>().clone();
    assert_eq!(batch.num_rows(), 2);
    assert_eq!(long("number").iter().collect::<Vec<_>>(), [Some(5), None]);
    assert_eq!(long("messages").iter().collect::<Vec<_>>(), [Some(1001), None]);
    for unknown in ["header_bytes", "body_bytes"] {
        assert_eq!(long(unknown).null_count(), 2, "{unknown}");
    }
    let queues = batch.column_by_name("queue").expect("a column").as_string::<i32>();
    assert_eq!(queues.iter().collect::<Vec<_>>(), [Some("a/0"), None]);
    let numbers = batch.column_by_name("numbers").expect("a column").as_list::<i32>();
    assert!(numbers.is_null(1));
    let ranges = numbers.value(0);
    let [first, last] =
        [0, 1].map(|column| ranges.as_struct().column(column).as_primitive::<Int64Type>().values().to_vec());
    assert_eq!((first, last), (vec![5, 2000], vec![1004, 2000]));
}
