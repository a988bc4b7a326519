//! Custom messages of the program.

use mqcore_broker::model::message::{Message, Properties};
use mqcore_wire::tmqp::header::push_header;
use pyo3::PyResult;

use crate::error;

/// A custom message without an id and a source.
pub(super) fn message(body: &[u8], content_type: u16, headers: Vec<(String, String)>) -> PyResult<Message> {
    let mut lines = Vec::new();
    for (key, value) in headers {
        push_header(&mut lines, &key, value.as_bytes())
            .map_err(|broken| error::InvalidArgument::new_err(format!("header {key:?}: {broken}")))?;
    }
    let properties = Properties { content_type, ..Properties::default() };
    Ok(Message::from_parts(b"", &lines, body, properties, None))
}
