//! Binds every address of a configuration, or none.

use mqcore_session::any::ListenerTerms;
use mqcore_tls::listener::LoadedListenerTls;

use crate::admin;
use crate::config::address::{AdminAddress, Listening};
use crate::config::{AdminConfig, Config, ConfigError, Encryption, ListenerTls};
use crate::net::listener::{self, Socket, TlsSocket};
use crate::net::tls::Tls;
use crate::server::error::StartError;

/// The bound sockets, and the TLS configuration of each.
pub(super) struct Bound {
    pub(super) listeners: Vec<(Socket, Listening, ListenerTerms)>,
    pub(super) admin: Option<(admin::AdminListener, AdminAddress)>,
}

/// Binds all addresses or none: a client that knows one address can rely on the others.
pub(super) async fn bind_all(config: &Config, tls: &Tls, allow_remote: bool) -> Result<Bound, StartError> {
    let mut listeners = Vec::new();
    for listener in &config.listeners {
        // Files are loaded before any port is bound, so that an unusable file is reported first.
        let loaded = load(config, &listener.encryption, &[])?;
        let (socket, address) = listener::bind(&listener.address, allow_remote).await?;
        let listening = Listening {
            protocol: listener.protocol(),
            address,
            encrypted: loaded.is_some(),
            query: listener.terms.client_query(),
        };
        let socket = match (socket, loaded) {
            (Socket::Tcp(listener), Some((files, loaded))) => {
                let endpoint = tls.add(listening.url(), files, &[], loaded);
                Socket::Tls(TlsSocket { listener, endpoint })
            }
            (socket, _) => socket,
        };
        listeners.push((socket, listening, listener.terms.clone()));
    }
    let admin = match &config.admin {
        Some(admin) => Some(bind_admin(config, admin, tls, allow_remote).await?),
        None => None,
    };
    Ok(Bound { listeners, admin })
}

async fn bind_admin(
    config: &Config,
    admin: &AdminConfig,
    tls: &Tls,
    allow_remote: bool,
) -> Result<(admin::AdminListener, AdminAddress), StartError> {
    let loaded = load(config, &admin.encryption, HTTP)?;
    let (socket, address) = listener::bind_tcp(&admin.address.to_string(), allow_remote).await?;
    let bound = AdminAddress { address, encrypted: loaded.is_some() };
    let endpoint = loaded.map(|(files, loaded)| tls.add(bound.url(), files, HTTP, loaded));
    Ok((admin::AdminListener { socket, endpoint }, bound))
}

/// The ALPN names of the admin side.
const HTTP: &[&[u8]] = &[b"http/1.1"];

/// Loads the TLS files of a listener; `None` if it is not encrypted.
fn load(
    config: &Config,
    encryption: &Encryption,
    protocols: &[&[u8]],
) -> Result<Option<(ListenerTls, LoadedListenerTls)>, StartError> {
    let files = match encryption {
        Encryption::None => return Ok(None),
        Encryption::Shared => config.tls.as_ref().ok_or(ConfigError::NoCertificate)?,
        Encryption::Own(files) => files,
    };
    Ok(Some((files.clone(), files.load(protocols)?)))
}
