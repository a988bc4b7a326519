//! Converts Python dataclasses to the client's options. Durations are already in seconds.

use std::sync::Arc;
use std::time::Duration;

use mqcore_client::address::BrokerAddress;
use mqcore_client::config::{Backoff, ClientConfig, ClientTls, Transport};
use mqcore_client::models::{ChannelOptions, QueueOptions, QueueStatus};
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::handshake::Extension;
use mqcore_wire::micromessage::negotiation::Lists;
use pyo3::prelude::*;

use super::error;
use crate::broker::{Broker, LocalClients};
use crate::fields::seconds;

/// The target of a connection: an embedded broker, or a list of URLs.
pub(super) fn transport(target: &Bound<'_, PyAny>) -> PyResult<Transport> {
    if let Ok(broker) = target.cast::<Broker>() {
        return Ok(Transport::Local(broker.get().connector()?));
    }
    let urls: Vec<String> = target.extract()?;
    let addresses: Result<_, _> = urls.iter().map(|url| BrokerAddress::parse(url)).collect();
    Ok(Transport::Tcp(addresses.map_err(error::client)?))
}

/// The client list of an embedded broker.
pub(super) fn local_clients(target: &Bound<'_, PyAny>) -> Option<Arc<LocalClients>> {
    target.cast::<Broker>().ok().and_then(|broker| broker.get().local_clients())
}

/// Reads a `mqcore.client.ClientOptions`.
pub(super) fn client(options: &Bound<'_, PyAny>) -> PyResult<ClientConfig> {
    let default = ClientConfig::default();
    Ok(ClientConfig {
        id: field(options, "id")?,
        name: field(options, "name")?,
        kind: field(options, "kind")?,
        token: field(options, "token")?,
        properties: field(options, "properties")?,
        tls: tls(options)?,
        extensions: extensions(options)?,
        backoff: Backoff {
            first: duration(options, "backoff_first")?,
            max: duration(options, "backoff_max")?,
            attempts: field(options, "reconnect_attempts")?,
        },
        connect_timeout: duration(options, "connect_timeout")?,
        patience: duration(options, "patience")?,
        ping_interval: duration(options, "ping_interval")?,
        pong_timeout: duration(options, "pong_timeout")?,
        request_timeout: duration(options, "request_timeout")?,
        drain_timeout: duration(options, "drain_timeout")?,
        limits: Limits { frame_bytes_max: field(options, "frame_bytes_max")?, ..default.limits },
        max_outstanding: field(options, "max_outstanding")?,
        write_buffer_bytes: field(options, "write_buffer_bytes")?,
        read_buffer_bytes: field(options, "read_buffer_bytes")?,
    })
}

/// Reads the `mqcore.micromessage.Extension`s of the options, if they are given.
fn extensions(options: &Bound<'_, PyAny>) -> PyResult<Option<Lists>> {
    let Some(given) = field::<Option<Vec<Bound<'_, PyAny>>>>(options, "extensions")? else { return Ok(None) };
    let mut lists = Lists::default();
    for each in given {
        let required: bool = field(&each, "required")?;
        let properties: Vec<(String, String)> = each
            .getattr("properties")?
            .call_method0("items")?
            .try_iter()?
            .map(|pair| pair?.extract())
            .collect::<PyResult<_>>()?;
        let pairs = properties.into_iter().map(|(key, value)| (key.into(), value.into_bytes().into()));
        let name: String = field(&each, "name")?;
        let extension = Extension { properties: pairs.collect(), ..Extension::new(name) };
        if required { lists.required.push(extension) } else { lists.optional.push(extension) }
    }
    Ok(Some(lists))
}

/// Reads the `mqcore.TLSConfig` of the options, if there is one.
fn tls(options: &Bound<'_, PyAny>) -> PyResult<Option<ClientTls>> {
    field::<Option<Bound<'_, PyAny>>>(options, "tls")?.map(|tls| tls_config(&tls)).transpose()
}

/// Reads a `mqcore.TLSConfig`.
pub(super) fn tls_config(tls: &Bound<'_, PyAny>) -> PyResult<ClientTls> {
    Ok(ClientTls {
        ca: field(tls, "ca")?,
        cert: field(tls, "cert")?,
        key: field(tls, "key")?,
        server_name: field(tls, "server_name")?,
        dangerously_accept_any_certificate: field(tls, "dangerously_accept_any_certificate")?,
    })
}

/// Reads a `mqcore.QueueOptions`.
pub(super) fn queue(options: &Bound<'_, PyAny>) -> PyResult<QueueOptions> {
    let status: Option<String> = field(options, "status")?;
    Ok(QueueOptions {
        status: status.as_deref().and_then(QueueStatus::from_text),
        send_only_first_acquirer: field(options, "only_first_acquirer")?,
        request_acknowledge: field(options, "request_acknowledge")?,
        acknowledge_timeout: milliseconds(options, "acknowledge_timeout")?,
        message_timeout: milliseconds(options, "message_timeout")?,
        use_message_id: field(options, "use_message_id")?,
        wait_for_acknowledge: field(options, "wait_for_acknowledge")?,
        hide_client_names: field(options, "hide_client_names")?,
        message_limit: field(options, "message_limit")?,
        message_size_limit: field(options, "message_size_limit")?,
        put_back_limit: field(options, "put_back_limit")?,
        dead_letter: field(options, "dead_letter")?,
        message_delivery_handler: field(options, "delivery_handler")?,
        tag: field(options, "tag")?,
        durability: field(options, "durability")?,
        publish_limit: field(options, "publish_limit")?,
    })
}

/// Reads a `mqcore.ChannelOptions`.
pub(super) fn channel(options: &Bound<'_, PyAny>) -> PyResult<ChannelOptions> {
    Ok(ChannelOptions {
        queue: queue(&options.getattr("queue")?)?,
        allow_multiple_queues: field(options, "allow_multiple_queues")?,
        allowed_queues: field::<Option<Vec<u16>>>(options, "allowed_queues")?.map(Some),
        client_limit: field(options, "client_limit")?,
        queue_limit: field(options, "queue_limit")?,
        destroy_when_empty: field(options, "destroy_when_empty")?,
    })
}

fn field<'py, T>(options: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    options.getattr(name)?.extract::<T>().map_err(Into::into)
}

fn duration(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Duration> {
    seconds(field(options, name)?, name)
}

fn milliseconds(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<u64>> {
    let value: Option<f64> = field(options, name)?;
    let duration = value.map(|value| seconds(value, name)).transpose()?;
    Ok(duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}
