//! The corpus of the fuzz target `tmqp_session`, as a plain test: what fuzzing once found stays found.

use crate::tmqp_session_check;

use std::fs;
use std::path::Path;

#[test]
fn every_script_of_the_corpus_keeps_the_promises() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tmqp_session");
    let mut scripts = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        tmqp_session_check::check(&fs::read(entry.unwrap().path()).unwrap());
        scripts += 1;
    }
    assert!(scripts >= 50, "only {scripts} scripts: one for each vector at least belongs to the corpus");
}
