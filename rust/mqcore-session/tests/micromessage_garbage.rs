//! A MicroMessage2 session under arbitrary scripts, and the scripts of the fuzz corpus.

use crate::micromessage_session_check;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Bytes that are valid more often than not.
fn said() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => select(vec![
            &b"\x01\x1csubscribe;destination=orders"[..],
            b"\x01\x26subscribe;destination=topic%2Ft,id=one",
            b"\x01\x12unsubscribe;id=one",
            b"\x01\x09ping;id=p",
            b"\0\0\x01\x06orders\0\0\x01x",
            b"\0\0\x02\x07topic/t\0\x05a:N1;\x01x",
            b"\x10\0\x03\x06orders\0\0\x01x",
            b"\x02\x01\x02\0\x01",
            b"\x02\x01\x02\0\x03",
            b"\x02\x02\x02\0\x02",
            b"\x02\x04\x03abc",
            b"\x04\0",
        ]).prop_map(<[u8]>::to_vec),
        1 => vec(any::<u8>(), 0..40),
    ]
}

fn step() -> impl Strategy<Value = Vec<u8>> {
    let received = said().prop_map(|bytes| (0, bytes));
    let other = (4_u8..12, vec(any::<u8>(), 0..6));
    prop_oneof![2 => received, 3 => other].prop_map(|(step, bytes)| {
        let length = u8::try_from(bytes.len()).unwrap();
        [vec![step, length], bytes].concat()
    })
}

proptest! {
    #[test]
    fn any_frames_keep_the_promises(agreed in 0_u8..5, steps in vec(step(), 0..40)) {
        let script = [vec![4, 1, agreed, 5, 0], steps.concat()].concat();
        micromessage_session_check::check(&script);
    }

    #[test]
    fn any_script_keeps_the_micromessage_promises(script in vec(any::<u8>(), 0..400)) {
        micromessage_session_check::check(&script);
    }
}

#[test]
fn every_script_of_the_corpus_keeps_the_promises() {
    let scripts = mqcore_testkit::corpus("micromessage_session");
    scripts.iter().for_each(|input| micromessage_session_check::check(&input.bytes));
    assert!(scripts.len() >= 5, "only {} scripts", scripts.len());
}
