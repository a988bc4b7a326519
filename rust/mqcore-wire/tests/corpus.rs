//! The corpus of the fuzz target `tmqp_codec`, as a plain test: what fuzzing once found stays found.

use crate::tmqp_check;

use std::fs;
use std::path::Path;

#[test]
fn every_input_of_the_corpus_keeps_the_promises() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tmqp_codec");
    let mut inputs = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        tmqp_check::check(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 56, "only {inputs} inputs: the vectors at least belong to the corpus");
}
