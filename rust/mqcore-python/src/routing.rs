//! Conversion of routers between Python and the broker: declarations, and answers of routers.

use mqcore_broker::model::decision::Decision as BrokerDecision;
use mqcore_broker::model::id::RouterName;
use mqcore_broker::model::router::{Binding, Interaction, RouterDefinition, RouterMethod, Target};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::error;
use crate::fields::field;
use crate::handler::Verdict;

/// Reads a `mqcore.RouterOptions`.
pub(crate) fn router(options: &Bound<'_, PyAny>) -> PyResult<RouterDefinition> {
    let name: String = field(options, "name")?;
    let method: String = field(options, "method")?;
    let mut router =
        RouterDefinition::new(router_name(&name)?, word("method", &method, RouterMethod::from_text)?);
    router.enabled = field(options, "enabled")?;
    for options in options.getattr("bindings")?.try_iter()? {
        router.add(binding(&options?)?).map_err(|broken| error::ConfigError::new_err(broken.to_string()))?;
    }
    Ok(router)
}

/// Reads a router's name.
pub(crate) fn router_name(name: &str) -> PyResult<RouterName> {
    RouterName::new(name).map_err(|broken| error::name(name, broken))
}

/// Reads a `mqcore.Binding`.
fn binding(options: &Bound<'_, PyAny>) -> PyResult<Binding> {
    let target: String = field(options, "target")?;
    let name: Option<String> = field(options, "name")?;
    let interaction: String = field(options, "interaction")?;
    let method: String = field(options, "method")?;
    let target = target_of(&target)?;
    let name = name.unwrap_or_else(|| target.to_string());
    Ok(Binding {
        content_type: field(options, "content_type")?,
        priority: field(options, "priority")?,
        interaction: word("interaction", &interaction, Interaction::from_text)?,
        method: word("method", &method, RouterMethod::from_text)?,
        ..Binding::new(&name, target)
    })
}

fn target_of(text: &str) -> PyResult<Target> {
    Target::parse(text).map_err(|broken| error::ConfigError::new_err(broken.to_string()))
}

fn word<T>(what: &str, text: &str, read: fn(&str) -> Option<T>) -> PyResult<T> {
    read(text).ok_or_else(|| error::ConfigError::new_err(format!("{what}: unknown value {text:?}")))
}

/// Reads the answer of a program's router or binding: a bool, nothing, one target, or several. `Ok(None)`: an
/// awaitable, or an invalid answer.
pub(crate) fn verdict(result: &Bound<'_, PyAny>) -> PyResult<Option<Verdict>> {
    if result.is_none() {
        return Ok(Some(Verdict::from(BrokerDecision::REFUSE)));
    }
    if let Ok(took) = result.cast::<PyBool>() {
        let decision = if took.is_true() { BrokerDecision::ALLOW } else { BrokerDecision::REFUSE };
        return Ok(Some(Verdict::from(decision)));
    }
    let mut targets = Vec::new();
    if let Some(target) = one_target(result)? {
        targets.push(target);
    } else {
        let Ok(several) = result.try_iter() else { return Ok(None) };
        for each in several {
            let each = each?;
            match one_target(&each)? {
                Some(target) => targets.push(target),
                None => return Ok(None),
            }
        }
    }
    Ok(Some(Verdict { targets: Some(targets.into()), ..Verdict::from(BrokerDecision::ALLOW) }))
}

/// Text, or a `mqcore.Binding`. A target in a router's answer has no binding name.
fn one_target(result: &Bound<'_, PyAny>) -> PyResult<Option<Binding>> {
    if let Ok(text) = result.cast::<PyString>() {
        return Ok(Some(Binding::new("", target_of(text.to_str()?)?)));
    }
    if result.hasattr(pyo3::intern!(result.py(), "interaction"))? {
        return Ok(Some(Binding { name: "".into(), ..binding(result)? }));
    }
    Ok(None)
}
