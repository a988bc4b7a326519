//! The corpus of the fuzz target `tmqp_session` as a plain test, so that fixed defects stay fixed.

use crate::tmqp_session_check;

#[test]
fn every_script_of_the_corpus_keeps_the_promises() {
    let scripts = mqcore_testkit::corpus("tmqp_session");
    scripts.iter().for_each(|input| tmqp_session_check::check(&input.bytes));
    assert!(
        scripts.len() >= 50,
        "only {} scripts: one for each vector at least belongs to the corpus",
        scripts.len()
    );
}
