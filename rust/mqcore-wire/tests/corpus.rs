//! The corpus of the fuzz target `tmqp_codec`, as a plain test: what fuzzing once found stays found.

use crate::tmqp_check;

#[test]
fn every_input_of_the_corpus_keeps_the_promises() {
    let inputs = mqcore_testkit::corpus("tmqp_codec");
    inputs.iter().for_each(|input| tmqp_check::check(&input.bytes));
    assert!(inputs.len() >= 56, "only {} inputs: the vectors at least belong to the corpus", inputs.len());
}
