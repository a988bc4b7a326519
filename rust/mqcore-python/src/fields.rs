//! Fields of Python dataclasses.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error;

pub(crate) fn duration(config: &Bound<'_, PyAny>, name: &str) -> PyResult<Duration> {
    seconds(field(config, name)?, name)
}

/// Reads a number of seconds.
pub(crate) fn seconds(value: f64, what: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|broken| error::ConfigError::new_err(format!("{what} cannot be {value} seconds: {broken}")))
}

pub(crate) fn field<'py, T>(config: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: FromPyObjectOwned<'py>,
{
    let value = config.getattr(PyString::intern(config.py(), name))?;
    value.extract().map_err(|broken: T::Error| {
        let broken: PyErr = broken.into();
        error::ConfigError::new_err(format!("{name} cannot be {value}: {broken}"))
    })
}
