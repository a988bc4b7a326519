//! Connections that other members open to this one.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use mqcore_consensus::message::ReplicaMessage;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::comparing::tell_state;
use crate::copying::send_copy;
use crate::input::Input;
use crate::link::{self, MemberStream};
use crate::transport::{
    ConnectionKind, GREETING, MESSAGE, MemberCredentials, invalid, read_frame, write_frame,
};

/// Strangers that have not proved who they are.
const STRANGERS_MAX: usize = 64;
/// Pause after an error of the listener, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Accepts connections of members until the process ends.
pub(crate) async fn accept(
    listener: TcpListener,
    credentials: Arc<MemberCredentials>,
    member: Sender<Input>,
) {
    let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&strangers).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of the cluster; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (credentials, member) = (Arc::clone(&credentials), member.clone());
        tokio::spawn(async move {
            let answered = begin(stream, &credentials).await;
            drop(permit);
            match answered {
                Ok((stream, node, kind)) => serve(stream, node, kind, member).await,
                Err(error) => tracing::warn!(%from, %error, "rejected a connection to the cluster"),
            }
        });
    }
}

async fn begin(
    stream: TcpStream,
    credentials: &MemberCredentials,
) -> io::Result<(Box<dyn MemberStream>, u32, ConnectionKind)> {
    let mut stream = link::accept(stream, credentials.tls.as_ref()).await?;
    let (node, kind) = credentials.answer(&mut stream).await?;
    Ok((stream, node, kind))
}

async fn serve(mut stream: Box<dyn MemberStream>, node: u32, kind: ConnectionKind, member: Sender<Input>) {
    let ended = match kind {
        ConnectionKind::Messages => receive(&mut stream, node, &member).await,
        ConnectionKind::Copy => send_copy(stream, node, member).await,
        ConnectionKind::Status => tell_status(&mut stream, &member).await,
        ConnectionKind::Compare => tell_state(&mut stream, &member).await,
        ConnectionKind::HandOver => hand_over(&mut stream, &member).await,
    };
    if let Err(error) = ended {
        tracing::debug!(node, %error, "a connection of the cluster has ended");
    }
}

async fn receive(stream: &mut Box<dyn MemberStream>, node: u32, member: &Sender<Input>) -> io::Result<()> {
    loop {
        let frame = read_frame(stream).await?;
        let input = match frame.first() {
            Some(&GREETING) => Input::Greeting(node, Box::new(serde_json::from_slice(&frame[1..])?)),
            Some(&MESSAGE) => {
                let group = frame[1..].first_chunk().ok_or_else(|| invalid("a message is too short"))?;
                let message = ReplicaMessage::decode(&frame.slice(9..)).map_err(io::Error::other)?;
                Input::Message(u64::from_le_bytes(*group), Box::new(message))
            }
            _ => return Err(invalid("unknown frame")),
        };
        member.send(input).map_err(|_| io::ErrorKind::BrokenPipe)?;
    }
}

/// Reads the number of a node, and answers why it cannot lead, or nothing.
async fn hand_over(stream: &mut Box<dyn MemberStream>, member: &Sender<Input>) -> io::Result<()> {
    let node = read_frame(stream).await?;
    let node = node.first_chunk().ok_or_else(|| invalid("not the number of a node"))?;
    let (answer, outcome) = tokio::sync::oneshot::channel();
    let request = Input::HandOver(u32::from_le_bytes(*node), answer);
    member.send(request).map_err(|_| io::ErrorKind::BrokenPipe)?;
    let refusal = outcome.await.map_err(io::Error::other)?.err().unwrap_or_default();
    write_frame(stream, &[refusal.as_bytes()]).await
}

async fn tell_status(stream: &mut Box<dyn MemberStream>, member: &Sender<Input>) -> io::Result<()> {
    let (answer, status) = tokio::sync::oneshot::channel();
    member.send(Input::Status(answer)).map_err(|_| io::ErrorKind::BrokenPipe)?;
    let status = status.await.map_err(io::Error::other)?;
    write_frame(stream, &[&serde_json::to_vec(&status)?]).await
}
