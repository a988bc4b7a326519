//! The corpus of the fuzz target `throttr_session` as a plain test, and random scripts, so that fixed defects stay
//! fixed.

use crate::throttr_session_check;

use proptest::prelude::*;

#[test]
fn every_script_of_the_corpus_keeps_the_promises() {
    let scripts = mqcore_testkit::corpus("throttr_session");
    scripts.iter().for_each(|input| throttr_session_check::check(&input.bytes));
    assert!(
        scripts.len() >= 50,
        "only {} scripts: what the dialogues send belongs to the corpus",
        scripts.len()
    );
}

/// A request that may be complete, for width 2 and others.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![Just(vec![1, b'a']), Just(vec![2, b'b', b'c']), Just(vec![0]), Just(vec![1, b'*'])];
    let code = prop_oneof![0_u8..0x1A, Just(0xC0), Just(0xC1)];
    (code, proptest::collection::vec(0_u8..8, 0..12), key)
        .prop_map(|(code, fields, key)| [vec![code], fields, key].concat())
}

fn script() -> impl Strategy<Value = Vec<u8>> {
    let step = prop_oneof![
        4 => proptest::collection::vec(request(), 1..6).prop_map(|requests| {
            let bytes = requests.concat();
            [vec![bytes.len().min(159) as u8], bytes].concat()
        }),
        1 => proptest::collection::vec(any::<u8>(), 0..60),
        2 => (160_u8..224).prop_map(|step| vec![step]),
    ];
    (any::<u8>(), proptest::collection::vec(step, 0..20))
        .prop_map(|(choice, steps)| [vec![choice], steps.concat()].concat())
}

proptest! {
    #[test]
    fn any_script_keeps_the_promises(script in script()) {
        throttr_session_check::check(&script);
    }
}
