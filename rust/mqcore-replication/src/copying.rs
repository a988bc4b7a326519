//! The copy of a whole directory for a new member.
//!
//! The source opens all its files between two entries of the log, and continues to change them while it sends them. The
//! receiver repeats the entries since then, which say what becomes of each byte that changed. When it has repeated all
//! entries up to the end of the copy, its files are the same as those of the source were then.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

use mqcore_journal::storage::directory::sync_directory;
use mqcore_journal::storage::private::{create_private_directory, private_options};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;

use crate::input::{Copied, Input};
use crate::link::MemberStream;
use crate::operation::is_valid;
use crate::shared_files::{OpenedFiles, remove_files};
use crate::transport::{ConnectionKind, MemberCredentials, read_frame, write_frame};

/// Bytes of a file in one frame.
const PIECE_BYTES: usize = 1 << 20;
/// Time for the next part of a copy.
const PATIENCE: Duration = Duration::from_secs(30);
const BEGIN: u8 = 1;
const FILE: u8 = 2;
const PIECE: u8 = 3;
const END: u8 = 4;

/// Sends a copy of this member's files.
///
/// # Errors
/// The connection has ended, or a file cannot be read.
pub(crate) async fn send_copy(
    mut stream: Box<dyn MemberStream>,
    node: u32,
    member: Sender<Input>,
) -> io::Result<()> {
    let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
    let (answer, opened) = oneshot::channel();
    member.send(Input::OpenFiles(answer)).map_err(|_| ended())?;
    let OpenedFiles { index, files } = opened.await.map_err(|_| ended())??;
    tracing::info!(node, files = files.len(), "copying all files to a new member of the cluster");
    let total: u64 = files.iter().filter_map(|(_, file)| Some(file.metadata().ok()?.len())).sum();
    write_frame(&mut stream, &[&[BEGIN], &index.to_le_bytes(), &total.to_le_bytes()]).await?;
    for (name, mut file) in files {
        write_frame(&mut stream, &[&[FILE], name.as_bytes()]).await?;
        loop {
            let reading = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; PIECE_BYTES];
                let read = file.read(&mut piece)?;
                piece.truncate(read);
                Ok::<_, io::Error>((file, piece))
            });
            let piece: Vec<u8>;
            (file, piece) = reading.await.map_err(io::Error::other)??;
            if piece.is_empty() {
                break;
            }
            write_frame(&mut stream, &[&[PIECE], &piece]).await?;
        }
    }
    let (answer, applied) = oneshot::channel();
    member.send(Input::Applied(answer)).map_err(|_| ended())?;
    let applied = applied.await.map_err(|_| ended())?;
    write_frame(&mut stream, &[&[END], &applied.to_le_bytes()]).await?;
    tokio::time::timeout(PATIENCE, stream.shutdown()).await?
}

/// Gets a copy of the files of another member into `root`, and makes it durable. Removes the files of this member once the other
/// one sends its own.
///
/// # Errors
/// The member cannot be reached or does not know everything, or a file cannot be written.
pub(crate) async fn receive_copy(
    root: &Path,
    address: &str,
    credentials: &MemberCredentials,
) -> io::Result<Copied> {
    let (mut stream, _) = credentials.connect(address, ConnectionKind::Copy).await?;
    let mut begun = None;
    let (mut received, mut total, mut shown) = (0_u64, 0_u64, 0);
    let mut current: Option<(PathBuf, File)> = None;
    let mut directories = BTreeSet::from([root.to_path_buf()]);
    loop {
        // A source that pauses or is cut off would keep this node waiting.
        let frame = tokio::time::timeout(PATIENCE, read_frame(&mut stream)).await??;
        let (kind, content) = frame.split_first().ok_or(io::ErrorKind::InvalidData)?;
        if *kind != PIECE
            && let Some((_, file)) = current.take()
        {
            file.sync_all()?;
        }
        match (*kind, &mut current) {
            (BEGIN, None) if begun.is_none() => {
                begun = Some(number(content)?);
                total = number(content.get(8..).unwrap_or_default())?;
                // Not before: a member that is not sure of its files sends none, and these may be the only ones.
                remove_files(root)?;
            }
            (FILE, None) => {
                let name = str::from_utf8(content).ok().filter(|name| is_valid(name));
                let path = root.join(name.ok_or(io::ErrorKind::InvalidData)?);
                if let Some(parent) = path.parent() {
                    create_private_directory(parent)?;
                    directories.insert(parent.to_path_buf());
                }
                let file = private_options().create(true).truncate(true).write(true).open(&path)?;
                current = Some((path, file));
            }
            (PIECE, Some((_, file))) => {
                file.write_all(content)?;
                received += content.len() as u64;
                let percent = (received * 100).checked_div(total).unwrap_or(100);
                if percent >= shown + 10 {
                    shown = percent;
                    tracing::info!(percent, bytes = received, "copying files of the cluster");
                }
            }
            (END, None) => {
                for directory in directories {
                    sync_directory(&directory)?;
                }
                let begun = begun.ok_or(io::ErrorKind::InvalidData)?;
                return Ok(Copied { begun, complete: number(content)? });
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected part of a copy")),
        }
    }
}

fn number(bytes: &[u8]) -> io::Result<u64> {
    let bytes = bytes.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    Ok(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use mqcore_tls::client::ClientTls;
    use mqcore_tls::listener::{ClientCertificates, ListenerTls};
    use rcgen::{CertificateParams, KeyPair};
    use tokio::io::DuplexStream;
    use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

    use super::*;

    /// A connection over a link that holds little.
    async fn tls_pair(root: &Path) -> (server::TlsStream<DuplexStream>, client::TlsStream<DuplexStream>) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let cert = root.join("node.pem");
        std::fs::write(&cert, certificate.pem() + &key.serialize_pem()).unwrap();
        let client_cert = ClientCertificates::default();
        let answerer = ListenerTls { cert: cert.clone(), key: None, client_ca: None, client_cert };
        let answerer = answerer.load(&[]).unwrap();
        let caller = ClientTls { ca: Some(cert), ..ClientTls::default() }.load().unwrap();
        let name = caller.server_name("localhost").unwrap();
        let (ours, theirs) = tokio::io::duplex(1024);
        let (accepted, connected) = tokio::join!(
            TlsAcceptor::from(answerer.config).accept(ours),
            TlsConnector::from(caller.config).connect(name, theirs)
        );
        (accepted.unwrap(), connected.unwrap())
    }

    #[tokio::test]
    async fn a_copy_over_tls_arrives_completely_at_a_slow_receiver() {
        let scratch = tempfile::TempDir::new().unwrap();
        let content = vec![7; 60 << 10];
        std::fs::write(scratch.path().join("authority.json"), &content).unwrap();
        let (inputs, received) = std::sync::mpsc::channel();
        let root = scratch.path().to_path_buf();
        std::thread::spawn(move || {
            while let Ok(input) = received.recv() {
                match input {
                    Input::OpenFiles(answer) => drop(answer.send(OpenedFiles::open(&root, 5))),
                    Input::Applied(answer) => drop(answer.send(9)),
                    other => panic!("{other:?}"),
                }
            }
        });
        let (ours, mut theirs) = tls_pair(scratch.path()).await;
        let sending = tokio::spawn(send_copy(Box::new(ours), 2, inputs));
        // Meanwhile, TLS can take all of it.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut frames = Vec::new();
        while frames.last().is_none_or(|frame: &bytes::Bytes| frame[0] != END) {
            frames.push(read_frame(&mut theirs).await.unwrap());
        }
        assert_eq!(frames.iter().map(|frame| frame[0]).collect::<Vec<_>>(), [BEGIN, FILE, PIECE, END]);
        assert_eq!(frames[2][1..], content);
        sending.await.unwrap().unwrap();
    }
}
