//! The corpus of the fuzz target `throttr_codec`, as a plain test: what fuzzing once found stays found.

use crate::throttr_check;

#[test]
fn every_input_of_the_corpus_keeps_the_promises() {
    let inputs = mqcore_testkit::corpus("throttr_codec");
    inputs.iter().for_each(|input| throttr_check::check(&input.bytes));
    assert!(inputs.len() >= 100, "only {} inputs: the dialogues at least belong to the corpus", inputs.len());
}
