//! Findings for operators, by kind.

use super::{Metric, gauge};
use crate::attention::finding::FindingKind;

pub(super) const METRICS: &[Metric] = &[gauge(
    "mqcore_findings",
    "Problems that need attention now, by kind; /attention describes each with its remedy.",
    |source, samples| {
        let report = source.hub.attention.report();
        for kind in FindingKind::ALL {
            samples.labeled("kind", kind.as_str(), report.count(kind));
        }
    },
)];
