//! Smaller scenarios with the same finding.

use crate::run::run;
use crate::scenario::{PublishTerms, Scenario, ScenarioStep};

/// Maximum runs of one search.
const RUNS_MAX: u32 = 2_000;

/// Removes steps and messages as long as a run breaks the same rule. Returns the scenario if it breaks none.
#[must_use]
pub fn shrink(scenario: &Scenario) -> Scenario {
    let mut best = scenario.clone();
    let Some(rule) = run(scenario, false).finding.map(|finding| finding.rule) else { return best };
    let mut runs = 0;
    let mut fails = |candidate: &Scenario| {
        runs += 1;
        runs <= RUNS_MAX && run(candidate, false).finding.is_some_and(|finding| finding.rule == rule)
    };
    // Nothing after the finding matters; half of the rest may matter, then a quarter, and so on.
    let mut size = best.steps.len();
    while size > 0 {
        let mut removed_any = false;
        let mut from = 0;
        while from < best.steps.len() {
            let mut candidate = best.clone();
            let until = (from + size).min(candidate.steps.len());
            candidate.steps.drain(from..until);
            if fails(&candidate) {
                best = candidate;
                removed_any = true;
            } else {
                from += size;
            }
        }
        if !removed_any || size > 1 {
            size /= 2;
        }
    }
    for index in 0..best.steps.len() {
        for smaller in smaller_steps(best.steps[index].1) {
            let mut candidate = best.clone();
            candidate.steps[index].1 = smaller;
            if fails(&candidate) {
                best = candidate;
            }
        }
    }
    best
}

/// Simpler forms of a step, the simplest last.
fn smaller_steps(step: ScenarioStep) -> Vec<ScenarioStep> {
    match step {
        ScenarioStep::Publish { client, count, bytes, terms } => vec![
            ScenarioStep::Publish { client, count, bytes: bytes.min(10), terms },
            ScenarioStep::Publish { client, count: count.div_ceil(2), bytes: bytes.min(10), terms },
            ScenarioStep::Publish { client, count: 1, bytes: bytes.min(10), terms },
            ScenarioStep::Publish { client, count: 1, bytes: bytes.min(10), terms: PublishTerms::default() },
        ],
        ScenarioStep::PowerLoss => vec![ScenarioStep::Kill],
        _ => Vec::new(),
    }
}
