//! Converts the dataclasses of `mqcore.config` to the server's configuration. The dataclasses check their fields and
//! convert durations to seconds; this module checks the rest, such as addresses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::config::HistoryOptions;
use mqcore_broker::model::declaration::Declaration;
use mqcore_broker::model::id::{ChannelName, QueueAddress};
use mqcore_broker::model::names::CreationLimits;
use mqcore_broker::model::options::{
    ChannelChanges, ChannelOptions, DeadLetter, Durability, QueueChanges, Status,
};
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::topic::TopicLimits;
use mqcore_replication::storage::DataFiles;
use mqcore_server::config::backup::BackupConfig;
use mqcore_server::config::history::{ArchiveConfig, HistoryConfig, ObjectArchiveConfig};
use mqcore_server::config::mask::MaskConfig;
use mqcore_server::config::{
    ClientCertificates, ClockConfig, Config, Encryption, ListenerConfig, ListenerTls,
};
use mqcore_server::net::guard::Limit;
use mqcore_server::nodes::config::{
    FilterRule, ForwardKind, LinkFilter, NodeConfig, UpstreamConfig, WildcardPattern,
};
use mqcore_wire::codec::Limits;
use pyo3::prelude::*;

use crate::fields::{duration, field, seconds};
use crate::{authority, error, routing};

/// The directory in the package with the files of the dashboard. It is missing if the package was built without them.
fn dashboard_dir(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    let package: PathBuf = py.import("mqcore")?.getattr("__path__")?.get_item(0)?.extract()?;
    let files = package.join("_dashboard");
    Ok(files.is_dir().then_some(files))
}

/// Reads a `mqcore.BrokerConfig`.
pub(crate) fn server(config: &Bound<'_, PyAny>, manual_clock: bool) -> PyResult<Config> {
    let listen: Vec<String> = field(config, "listen")?;
    let admin: Option<String> = field(config, "admin")?;
    let mut channel = ChannelOptions::default();
    channel_changes(&config.getattr("channel")?)?.apply_to(&mut channel);
    Ok(Config {
        listeners: listeners(config, &listen)?,
        admin: admin.as_deref().map(str::parse).transpose().map_err(|broken| error::config(&broken))?,
        allow_remote: field(config, "allow_remote")?,
        shards: field(config, "shards")?,
        channel,
        auto_create_channels: field(config, "auto_create_channels")?,
        auto_create_queues: field(config, "auto_create_queues")?,
        client_limit: field(config, "client_limit")?,
        channel_limit: field(config, "channel_limit")?,
        delivery_handler: field(config, "delivery_handler")?,
        event_handler: field(config, "event_handler")?,
        limits: Limits {
            frame_bytes_max: field(config, "frame_bytes_max")?,
            header_bytes_max: field(config, "header_bytes_max")?,
        },
        connections_max: field(config, "connections_max")?,
        half_open_max: field(config, "half_open_max")?,
        login_bytes_max: field(config, "login_bytes_max")?,
        half_open_bytes_max: field(config, "half_open_bytes_max")?,
        unfinished_bytes_max: field(config, "unfinished_bytes_max")?,
        output_bytes_max: field(config, "output_bytes_max")?,
        slow_consumer_timeout: duration(config, "slow_consumer_timeout")?,
        handshake_timeout: duration(config, "handshake_timeout")?,
        ping_interval: duration(config, "ping_interval")?,
        pong_timeout: duration(config, "pong_timeout")?,
        clock: if manual_clock { ClockConfig::Manual } else { ClockConfig::System },
        undecided_max: field(config, "undecided_max")?,
        topic_limits: TopicLimits {
            subscriptions_max: field(config, "topic_subscriptions_max")?,
            patterns_max: field(config, "topic_patterns_max")?,
            patterns_per_user_max: field(config, "topic_patterns_per_user_max")?,
        },
        creation_limits: CreationLimits {
            channels_per_user_max: field(config, "channels_per_user_max")?,
            queues_per_user_max: field(config, "queues_per_user_max")?,
        },
        dashboard_dir: dashboard_dir(config.py())?,
        publish_limit: rate_limit(config, "publish_limit")?,
        connect_limit: rate_limit(config, "connect_limit")?,
        limiter_keys_max: field(config, "limiter_keys_max")?,
        limiter_keys_per_user_max: field(config, "limiter_keys_per_user_max")?,
        limiter_bytes_max: field(config, "limiter_bytes_max")?,
        limiter_persist_interval: duration(config, "limiter_persist_interval")?,
        memory_watermark: field(config, "memory_watermark")?,
        unsaved_memory_max: field(config, "unsaved_memory_max")?,
        unsaved_memory_per_user_max: field(config, "unsaved_memory_per_user_max")?,
        data_dir: field::<Option<PathBuf>>(config, "data_dir")?,
        files: DataFiles::Local,
        authority: authority::config(&config.call_method0("_authority")?.extract::<String>()?)?,
        routers: routers(config)?,
        declarations: declarations(config)?,
        node: node(config)?,
        history: history(config)?,
        backup: continuous_backup(config)?,
        mask: MaskConfig::new(
            &field::<Vec<String>>(config, "mask_fields")?,
            &field::<Vec<String>>(config, "mask_bodies")?,
        )
        .map_err(|broken| error::config(&broken))?,
        spans: config.call_method0("_traces")?.extract::<bool>()?.then(Arc::default),
        tls: field::<Option<Bound<'_, PyAny>>>(config, "tls")?.as_ref().map(listener_tls).transpose()?,
        tls_handshakes_max: field(config, "tls_handshakes_max")?,
        tls_expiry_warning: duration(config, "tls_expiry_warning")?,
    })
}

fn node(config: &Bound<'_, PyAny>) -> PyResult<Option<NodeConfig>> {
    let node = config.getattr("node")?;
    if node.is_none() {
        return Ok(None);
    }
    Ok(Some(NodeConfig {
        name: field(&node, "name")?,
        accepts: field(&node, "accepts")?,
        token: field(&node, "token")?,
        accept: node_filter(&node.getattr("accept")?)?,
        upstreams: node
            .getattr("upstreams")?
            .try_iter()?
            .map(|entry| upstream(&entry?))
            .collect::<PyResult<_>>()?,
        keep_messages: field(&node, "keep_messages")?,
        keep_bytes_max: field(&node, "keep_bytes_max")?,
        keep_age_max: optional_duration(&node, "keep_age_max")?,
        buffer_bytes_max: field(&node, "buffer_bytes_max")?,
        reconnect_wait: duration(&node, "reconnect_wait")?,
        confirm_timeout: duration(&node, "confirm_timeout")?,
    }))
}

fn upstream(upstream: &Bound<'_, PyAny>) -> PyResult<UpstreamConfig> {
    let url: String = field(upstream, "url")?;
    let parsed: UpstreamConfig = url.parse().map_err(|broken| error::config(&broken))?;
    let token: Option<String> = field(upstream, "token")?;
    let send = node_filter(&upstream.getattr("send")?)?;
    Ok(UpstreamConfig { token: token.or(parsed.token), send, ..parsed })
}

fn node_filter(filter: &Bound<'_, PyAny>) -> PyResult<LinkFilter> {
    let rules = |name: &str| -> PyResult<Vec<FilterRule>> {
        filter.getattr(name)?.try_iter()?.map(|rule| node_rule(&rule?)).collect()
    };
    Ok(LinkFilter { allow: rules("allow")?, deny: rules("deny")? })
}

fn node_rule(rule: &Bound<'_, PyAny>) -> PyResult<FilterRule> {
    let pattern = |name: &str| -> PyResult<Option<WildcardPattern>> {
        Ok(field::<Option<String>>(rule, name)?.as_deref().map(WildcardPattern::new))
    };
    let kinds: Vec<String> = field(rule, "kinds")?;
    let header: Option<String> = field(rule, "header")?;
    let value: String = field(rule, "value")?;
    Ok(FilterRule {
        kinds: kinds.iter().filter_map(|word| ForwardKind::from_word(word)).collect(),
        channel: pattern("channel")?,
        queue: field(rule, "queue")?,
        router: pattern("router")?,
        client_id: pattern("client_id")?,
        client_name: pattern("client_name")?,
        client_type: pattern("client_type")?,
        node: pattern("node")?,
        header: header.map(|name| (name.into(), WildcardPattern::new(&value))),
    })
}

fn routers(config: &Bound<'_, PyAny>) -> PyResult<Vec<RouterDefinition>> {
    let mut routers = Vec::new();
    for options in config.getattr("routers")?.try_iter()? {
        routers.push(routing::router(&options?)?);
    }
    Ok(routers)
}

fn declarations(config: &Bound<'_, PyAny>) -> PyResult<Vec<Declaration>> {
    let mut declarations = Vec::new();
    for (table, kind) in [("channels", "channel"), ("queues", "queue")] {
        for declared in config.getattr(table)?.try_iter()? {
            let declared = declared?;
            let name: String = field(&declared, "name")?;
            declarations.push(declaration(kind, &name, &declared.getattr("options")?)?);
        }
    }
    Ok(declarations)
}

/// Reads the declaration of a `channel` with a `mqcore.ChannelOptions`, of a `queue` with a `mqcore.QueueOptions`, or
/// of a `router`, which is a `mqcore.RouterOptions`.
pub(crate) fn declaration(kind: &str, name: &str, options: &Bound<'_, PyAny>) -> PyResult<Declaration> {
    match kind {
        "channel" => {
            let channel = ChannelName::new(name).map_err(|broken| {
                error::ConfigError::new_err(format!("invalid channel name {name:?}: {broken}"))
            })?;
            Ok(Declaration::Channel(channel, Box::new(channel_changes(options)?)))
        }
        "queue" => Ok(Declaration::Queue(queue_address(name)?, Box::new(queue_changes(options)?))),
        _ => Ok(Declaration::Router(Box::new(routing::router(options)?))),
    }
}

fn history(config: &Bound<'_, PyAny>) -> PyResult<Option<HistoryConfig>> {
    if !field::<bool>(config, "history")? {
        return Ok(None);
    }
    let archive = ArchiveConfig {
        interval: duration(config, "archive_interval")?,
        max_age: limit(duration(config, "archive_max_age")?, Duration::ZERO),
        max_bytes: limit(field(config, "archive_max_bytes")?, 0),
        objects: object_archive(config)?,
    };
    Ok(Some(HistoryConfig {
        options: HistoryOptions { bodies: field(config, "history_bodies")? },
        max_age: limit(duration(config, "history_max_age")?, Duration::ZERO),
        max_bytes: field(config, "history_max_bytes")?,
        archive: field::<bool>(config, "archive")?.then_some(archive),
    }))
}

/// The archive on object storage, if there is a URL.
fn object_archive(config: &Bound<'_, PyAny>) -> PyResult<Option<ObjectArchiveConfig>> {
    let Some(url) = field::<Option<String>>(config, "archive_url")? else { return Ok(None) };
    Ok(Some(ObjectArchiveConfig {
        options: store_options(config, "archive_options")?,
        buckets: field(config, "archive_partitions")?,
        file_bytes: field(config, "archive_file_bytes")?,
        compact_after: duration(config, "archive_compact_after")?,
        snapshot_max_age: duration(config, "archive_snapshot_max_age")?,
        url,
    }))
}

/// The continuous backup, if there is a URL.
fn continuous_backup(config: &Bound<'_, PyAny>) -> PyResult<Option<BackupConfig>> {
    let Some(url) = field::<Option<String>>(config, "backup_url")? else { return Ok(None) };
    Ok(Some(BackupConfig {
        options: store_options(config, "backup_options")?,
        interval: duration(config, "backup_interval")?,
        keep: duration(config, "backup_keep")?,
        url,
    }))
}

/// The settings of an object store, each `name=value`.
fn store_options(config: &Bound<'_, PyAny>, setting: &str) -> PyResult<BTreeMap<String, String>> {
    field::<Vec<String>>(config, setting)?.iter().map(|option| named_option(setting, option)).collect()
}

/// A setting of the object store, `name=value`.
pub(crate) fn store_option(option: &str) -> PyResult<(String, String)> {
    named_option("archive_options", option)
}

fn named_option(setting: &str, option: &str) -> PyResult<(String, String)> {
    let (name, value) = option.split_once('=').ok_or_else(|| {
        error::ConfigError::new_err(format!(
            "invalid {setting} {option:?}: write name=value, such as aws_region=eu-central-1"
        ))
    })?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// A limit; `none` means no limit.
fn limit<T: PartialEq>(value: T, none: T) -> Option<T> {
    (value != none).then_some(value)
}

/// Listeners from URLs, then those from tables.
fn listeners(config: &Bound<'_, PyAny>, urls: &[String]) -> PyResult<Vec<ListenerConfig>> {
    let parse = |url: &str| url.parse::<ListenerConfig>().map_err(|broken| error::config(&broken));
    let mut listeners = Vec::new();
    for url in urls {
        listeners.extend(ListenerConfig::all_of(url).map_err(|broken| error::config(&broken))?);
    }
    for table in field::<Vec<Bound<'_, PyAny>>>(config, "listener")? {
        let url: String = field(&table, "url")?;
        let mut listener = parse(&url)?;
        if let Some(tls) = field::<Option<Bound<'_, PyAny>>>(&table, "tls")? {
            if listener.encryption != Encryption::Shared {
                return Err(error::ConfigError::new_err(format!(
                    "the listener {url} has a table tls, but its URL asks for no TLS or names files itself; write an \
                     's' behind the protocol, and the files in one place"
                )));
            }
            listener.encryption = Encryption::Own(listener_tls(&tls)?);
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Reads a `mqcore.ListenerTLS`.
fn listener_tls(tls: &Bound<'_, PyAny>) -> PyResult<ListenerTls> {
    let client_cert: String = field(tls, "client_cert")?;
    Ok(ListenerTls {
        cert: field(tls, "cert")?,
        key: field(tls, "key")?,
        client_ca: field(tls, "client_ca")?,
        // The dataclass allows no other value.
        client_cert: ClientCertificates::from_text(&client_cert).unwrap_or_default(),
    })
}

// generated by tools/generate_options.py
/// Reads a `mqcore.QueueOptions`.
fn queue_changes(options: &Bound<'_, PyAny>) -> PyResult<QueueChanges> {
    Ok(QueueChanges {
        status: status(options, "status")?,
        only_first_acquirer: field(options, "only_first_acquirer")?,
        request_acknowledge: field(options, "request_acknowledge")?,
        acknowledge_timeout: optional_duration(options, "acknowledge_timeout")?,
        message_timeout: optional_duration(options, "message_timeout")?,
        use_message_id: field(options, "use_message_id")?,
        wait_for_acknowledge: field(options, "wait_for_acknowledge")?,
        hide_client_names: field(options, "hide_client_names")?,
        message_limit: field(options, "message_limit")?,
        message_size_limit: field(options, "message_size_limit")?,
        tag: optional_text(options, "tag")?,
        delivery_handler: optional_text(options, "delivery_handler")?,
        put_back_limit: field(options, "put_back_limit")?,
        retry_delay: delay(options, "retry_delay")?,
        retry_delay_max: optional_duration(options, "retry_delay_max")?,
        dead_letter: optional_dead_letter(options, "dead_letter")?,
        durability: durability(options, "durability")?,
        deduplication_window: optional_duration(options, "deduplication_window")?,
        publish_limit: optional_rate(options, "publish_limit")?,
    })
}

/// Reads a `mqcore.ChannelOptions`.
fn channel_changes(options: &Bound<'_, PyAny>) -> PyResult<ChannelChanges> {
    Ok(ChannelChanges {
        queue: queue_changes(&options.getattr("queue")?)?,
        allow_multiple_queues: field(options, "allow_multiple_queues")?,
        allowed_queues: queue_ids(options, "allowed_queues")?,
        client_limit: field(options, "client_limit")?,
        queue_limit: field(options, "queue_limit")?,
        destroy_when_empty: field(options, "destroy_when_empty")?,
        event_handler: optional_text(options, "event_handler")?,
        authenticator: optional_text(options, "authenticator")?,
    })
}
// end generated

fn status(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Status>> {
    Ok(field::<Option<String>>(options, name)?.as_deref().and_then(Status::from_text))
}

fn durability(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Durability>> {
    Ok(field::<Option<String>>(options, name)?.as_deref().and_then(Durability::from_text))
}

fn optional_text(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Box<str>>> {
    Ok(field::<Option<String>>(options, name)?.map(Into::into))
}

fn optional_dead_letter(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Option<DeadLetter>>> {
    let Some(text) = field::<Option<String>>(options, name)? else { return Ok(None) };
    if text.is_empty() {
        return Ok(Some(None));
    }
    let parsed = DeadLetter::parse(&text);
    parsed.map(|dead_letter| Some(Some(dead_letter))).map_err(|broken| {
        error::ConfigError::new_err(format!("invalid {name} {text:?}: {broken}; use a queue or \"drop\""))
    })
}

/// A duration that an option may lack.
fn delay(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Option<Duration>>> {
    Ok(optional_duration(options, name)?.map(Some))
}

fn queue_ids(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Option<Vec<u16>>>> {
    Ok(field::<Option<Vec<u16>>>(options, name)?.map(Some))
}

/// Reads `orders/1001`.
pub(crate) fn queue_address(text: &str) -> PyResult<QueueAddress> {
    QueueAddress::parse(text).map_err(|broken| error::name(text, broken))
}

/// A limit of a queue; `none` removes the inherited one.
fn optional_rate(options: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Option<Limit>>> {
    let text: Option<String> = field(options, name)?;
    text.map(|text| Limit::change(&text))
        .transpose()
        .map_err(|broken| error::ConfigError::new_err(format!("{name}: {broken}")))
}

fn rate_limit(config: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Limit>> {
    let text: Option<String> = field(config, name)?;
    text.map(|text| text.parse::<Limit>())
        .transpose()
        .map_err(|broken| error::ConfigError::new_err(format!("{name}: {broken}")))
}

fn optional_duration(config: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Duration>> {
    field::<Option<f64>>(config, name)?.map(|value| seconds(value, name)).transpose()
}
