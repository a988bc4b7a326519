//! `GET /` and `GET /assets/FILE`: the files of the dashboard. They contain no data and need no credentials; the pages ask
//! the other paths with the token of their user.

use std::collections::HashMap;
use std::path::Path;

use axum::extract::{Path as UrlPath, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use crate::admin::request::{Admin, error};

/// The page may run its own scripts and ask its own origin, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The directory with the scripts and styles, below that of the index.
const ASSETS: &str = "assets";
const INDEX: &str = "index.html";

/// The files, read once at the start.
#[derive(Debug, Default)]
pub(crate) struct DashboardFiles {
    index: Option<Bytes>,
    assets: HashMap<String, Bytes>,
}

impl DashboardFiles {
    /// Reads a directory. Without an index there is no dashboard.
    pub(crate) fn read(directory: Option<&Path>) -> Self {
        let Some(directory) = directory else { return Self::default() };
        let index = std::fs::read(directory.join(INDEX)).ok().map(Bytes::from);
        let entries = std::fs::read_dir(directory.join(ASSETS)).into_iter().flatten().flatten();
        let assets = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, std::fs::read(entry.path()).ok()?.into()))
        });
        Self { index, assets: assets.collect() }
    }
}

pub(crate) async fn index(State(admin): State<Admin>) -> Response {
    let Some(index) = admin.dashboard.index.clone() else {
        let message = "this installation has no dashboard; /overview, /attention and /queues have the same data as JSON";
        return error(StatusCode::NOT_FOUND, "not-found", message);
    };
    // The index names the current assets, so browsers must ask for it each time.
    file(index, "text/html; charset=utf-8", "no-cache")
}

pub(crate) async fn asset(State(admin): State<Admin>, UrlPath(name): UrlPath<String>) -> Response {
    let kind = match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    match admin.dashboard.assets.get(&name) {
        // Their names contain a hash of their contents.
        Some(content) => file(content.clone(), kind, "public, max-age=31536000, immutable"),
        None => error(StatusCode::NOT_FOUND, "not-found", &format!("the dashboard has no file {name}")),
    }
}

fn file(content: Bytes, kind: &'static str, caching: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, caching),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_once_and_a_missing_directory_has_none() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(ASSETS)).unwrap();
        std::fs::write(directory.path().join(INDEX), "<html>").unwrap();
        std::fs::write(directory.path().join(ASSETS).join("a.js"), "1").unwrap();
        let files = DashboardFiles::read(Some(directory.path()));
        assert_eq!(files.index.as_deref(), Some(&b"<html>"[..]));
        assert_eq!(files.assets.get("a.js").map(|content| &content[..]), Some(&b"1"[..]));
        assert!(DashboardFiles::read(None).index.is_none());
        assert!(DashboardFiles::read(Some(&directory.path().join("missing"))).index.is_none());
    }
}
