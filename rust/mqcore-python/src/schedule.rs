//! Checks of schedules before they are sent.

use mqcore_server::schedules;
use pyo3::prelude::*;

/// Checks a cron expression and a time zone, which may be empty, as the broker does. Returns the reason if one is invalid.
#[pyfunction]
pub(crate) fn cron_mistake(py: Python<'_>, expression: &str, zone: &str) -> Option<String> {
    py.detach(|| schedules::check_cron(expression, zone)).err().map(|error| error.to_string())
}

/// The names of all time zones that the broker knows.
#[pyfunction]
pub(crate) fn time_zones(py: Python<'_>) -> Vec<String> {
    py.detach(schedules::time_zones)
}
