//! Records of lists: each field is read from the place that the protocol document names.

use mqcore_wire::throttr::Family;
use mqcore_wire::throttr::answer::ConnectionRecord;
use mqcore_wire::throttr::reply;

/// A record whose bytes all differ from their neighbors.
fn record(bytes: usize) -> Vec<u8> {
    (1..=bytes).map(|at| at as u8).collect()
}

fn number(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().unwrap())
}

#[test]
fn channel_record_has_three_counts_after_the_length_of_its_name() {
    let record = record(25);
    let expected = [number(&record, 1), number(&record, 9), number(&record, 17)];
    assert_eq!(reply::channel(&record), Some(expected));
    assert_eq!(reply::channel(&record[1..]), None);
}

#[test]
fn connection_record_has_its_fields_in_order_in_both_families() {
    for (family, role, transport, at) in [(Family::V71, 0, 0, 16), (Family::V73, 17, 18, 18)] {
        let record = record(ConnectionRecord::bytes(family));
        let expected = ConnectionRecord {
            id: record[..16].try_into().unwrap(),
            role,
            transport,
            ip_version: record[at],
            address: record[at + 1..at + 17].try_into().unwrap(),
            port: u16::from_le_bytes([record[at + 17], record[at + 18]]),
            connected_at: number(&record, at + 19),
            numbers: std::array::from_fn(|index| number(&record, at + 27 + 8 * index)),
        };
        assert_eq!(reply::connection(&record, family), Some(expected), "{family:?}");
        assert_eq!(reply::connection(&record[1..], family), None);
    }
}
