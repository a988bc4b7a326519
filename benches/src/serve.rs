//! The process under test: a server without Python that runs until standard input is closed.

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::options::{ChannelOptions, QueueOptions, Status};
use mqcore_server::config::Config;
use mqcore_server::config::history::HistoryConfig;
use mqcore_server::handler::NoHandlers;
use mqcore_server::server::Server;
use serde_json::json;

/// How queues of the server behave.
#[derive(Debug, Clone)]
pub struct Serve {
    /// Their status.
    pub status: Status,
    /// Whether consumers acknowledge.
    pub acknowledge: bool,
    /// Shards; 0: one for each core.
    pub shards: usize,
    /// Threads of the runtime; 0: one for each core.
    pub workers: usize,
    /// Storage of its queues; `None`: they save nothing.
    pub saving: Option<Saving>,
}

/// Storage of a server.
#[derive(Debug, Clone)]
pub struct Saving {
    /// The delivery handler or policy that decides about it.
    pub delivery_handler: String,
    /// The data directory.
    pub data_dir: PathBuf,
    /// Whether lifecycle events are recorded.
    pub history: History,
    /// Whether its limits are persistent.
    pub limits: bool,
}

/// How the server treats lifecycle events of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// They are not recorded.
    Off,
    /// They are recorded in the journal.
    Journal,
    /// They are recorded, and archived as Parquet.
    Archive,
}

impl History {
    const ALL: [Self; 3] = [Self::Off, Self::Journal, Self::Archive];

    fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Journal => "journal",
            Self::Archive => "archive",
        }
    }

    fn config(self) -> Option<HistoryConfig> {
        match self {
            Self::Off => None,
            Self::Journal => Some(HistoryConfig { archive: None, ..HistoryConfig::default() }),
            Self::Archive => Some(HistoryConfig::default()),
        }
    }
}

impl Serve {
    /// The arguments from which [`Serve::from_arguments`] restores this value.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            self.status.as_str().into(),
            self.acknowledge.to_string(),
            self.shards.to_string(),
            self.workers.to_string(),
        ];
        if let Some(Saving { delivery_handler, data_dir, history, limits }) = &self.saving {
            let data_dir = data_dir.to_string_lossy().into_owned();
            arguments.extend(["--handler".into(), delivery_handler.clone(), "--data-dir".into(), data_dir]);
            arguments.extend(["--history".into(), history.as_str().into()]);
            arguments.extend(["--limits".into(), limits.to_string()]);
        }
        arguments
    }

    /// Parses the arguments of [`Serve::arguments`].
    pub fn from_arguments(arguments: &[String]) -> Option<Self> {
        let [status, acknowledge, shards, workers, saving @ ..] = arguments else { return None };
        let saving = match saving {
            [] => None,
            [handler, delivery_handler, directory, data_dir, history, kept, limits, survive]
                if [handler, directory, history, limits]
                    == ["--handler", "--data-dir", "--history", "--limits"] =>
            {
                Some(Saving {
                    delivery_handler: delivery_handler.clone(),
                    data_dir: data_dir.into(),
                    history: History::ALL.into_iter().find(|history| history.as_str() == kept)?,
                    limits: survive.parse().ok()?,
                })
            }
            _ => return None,
        };
        Some(Self {
            status: Status::from_text(status)?,
            acknowledge: acknowledge.parse().ok()?,
            shards: shards.parse().ok()?,
            workers: workers.parse().ok()?,
            saving,
        })
    }
}

/// Serves. First prints one line of JSON with its addresses.
///
/// # Errors
/// If it cannot start.
#[expect(clippy::print_stdout, reason = "the line is how the other process learns the addresses")]
pub fn serve(options: Serve) -> Result<(), Box<dyn Error>> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if options.workers > 0 {
        runtime.worker_threads(options.workers);
    }
    let runtime = runtime.enable_all().build()?;
    let queue = QueueOptions {
        status: options.status,
        request_acknowledge: options.acknowledge,
        ..QueueOptions::default()
    };
    let persist = if options.saving.as_ref().is_some_and(|saving| saving.limits) { "on" } else { "off" };
    let mut config = Config {
        listeners: vec![
            "tmqp://127.0.0.1:0".parse()?,
            format!("throttr://127.0.0.1:0?value=uint64&persist={persist}").parse()?,
            "mqks://127.0.0.1:0".parse()?,
            "mm2://127.0.0.1:0".parse()?,
            "emqp://127.0.0.1:0?role=backend".parse()?,
            "emqp://127.0.0.1:0?role=frontend".parse()?,
        ],
        admin: Some("http://127.0.0.1:0".parse()?),
        shards: options.shards,
        channel: ChannelOptions { queue, ..ChannelOptions::default() },
        auto_create_channels: true,
        auto_create_queues: true,
        // Ten thousand idle connections are measured; they must not be pinged meanwhile.
        ping_interval: Duration::from_secs(3600),
        ..Config::default()
    };
    if let Some(Saving { delivery_handler, data_dir, history, .. }) = options.saving {
        config.delivery_handler = delivery_handler;
        config.history = history.config();
        config.data_dir = Some(data_dir);
    }
    let server = runtime.block_on(Server::start(config, Vec::new(), Arc::new(NoHandlers)))?;
    let ready = json!({
        "tmqp": server.listeners()[0].address.to_string(),
        "throttr": server.listeners()[1].address.to_string(),
        "mqks": server.listeners()[2].address.to_string(),
        "mm2": server.listeners()[3].address.to_string(),
        "emqp": server.listeners()[4].address.to_string(),
        "emqp-frontend": server.listeners()[5].address.to_string(),
        "admin": server.admin().map(|admin| admin.address.to_string()),
    });
    println!("{ready}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(server.stop(Duration::from_millis(100)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_under_test_receives_storage_settings() {
        let saving = Saving {
            delivery_handler: "at-least-once".into(),
            data_dir: "/tmp/a b".into(),
            history: History::Archive,
            limits: true,
        };
        let original = Serve {
            status: Status::Pull,
            acknowledge: false,
            shards: 2,
            workers: 0,
            saving: Some(saving.clone()),
        };
        let read = Serve::from_arguments(&original.arguments()).unwrap().saving.unwrap();
        assert_eq!((read.delivery_handler, read.data_dir), (saving.delivery_handler, saving.data_dir));
        assert_eq!((read.history, read.limits), (saving.history, saving.limits));
        let unsaved = Serve { saving: None, ..original };
        assert!(Serve::from_arguments(&unsaved.arguments()).unwrap().saving.is_none());
        let mut unknown = unsaved.arguments();
        unknown.push("--sync".into());
        assert!(Serve::from_arguments(&unknown).is_none());
    }
}
