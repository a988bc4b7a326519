//! Authenticated connections between the members of a cluster.
//!
//! ```text
//! caller:   "MQCL" 2, kind, node (u32), length of cluster (u8), cluster, 32 random bytes
//! answerer: node (u32), 32 random bytes, HMAC("answer", all of the above)
//! caller:   HMAC("call", all of the above)
//! ```
//!
//! Both prove that they know the secret of the cluster. Then frames follow: a length (u32) and that many bytes. All of
//! it is inside TLS if the cluster has certificates; otherwise it belongs into a private network.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use mqcore_consensus::message::ReplicaMessage;
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::input::MemberGreeting;
use crate::link::{self, MemberStream, MemberTls};
use crate::status::clock_ms;

const MAGIC: &[u8; 5] = b"MQCL\x02";
/// Frames are entries of one operation, several of them in a message, or parts of files.
const FRAME_BYTES_MAX: u32 = 64 << 20;
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Time between attempts to reach a member.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Time between two greetings on a connection.
const GREETING_INTERVAL: Duration = Duration::from_millis(500);
/// Messages that wait for a member. The algorithm repeats what is lost.
const QUEUE_MAX: usize = 4096;

/// Kinds of frames: a [`MemberGreeting`], or a group (u64) and a message of a replica.
pub(crate) const GREETING: u8 = 1;
pub(crate) const MESSAGE: u8 = 2;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Greetings and messages of replicas, from the caller to the answerer.
    Messages,
    /// A copy of the answerer's files.
    Copy,
    /// The status of the answerer.
    Status,
    /// The state of one of the answerer's files.
    Compare,
    /// A request that another node leads.
    HandOver,
}

impl ConnectionKind {
    const fn number(self) -> u8 {
        match self {
            Self::Messages => 1,
            Self::Copy => 2,
            Self::Status => 3,
            Self::Compare => 4,
            Self::HandOver => 5,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::Messages, Self::Copy, Self::Status, Self::Compare, Self::HandOver]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// The secret of a cluster, and who calls or answers with it.
#[derive(Debug, Clone)]
pub struct MemberCredentials {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of this node; 0 for a program that only asks for the status.
    pub node: u32,
    /// The secret.
    pub secret: Vec<u8>,
    /// The certificates; `None`: nothing is encrypted.
    pub tls: Option<MemberTls>,
}

/// A random number.
///
/// # Panics
/// If the system has no random numbers.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u64::from_le_bytes(bytes)
}

fn random_nonce() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

impl MemberCredentials {
    fn mac(&self, role: &[u8], transcript: &[u8]) -> io::Result<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).map_err(io::Error::other)?;
        mac.update(role);
        mac.update(transcript);
        Ok(mac)
    }

    /// Connects to the member at `HOST:PORT`, and proves to it that this node belongs to the cluster, as it does. Returns its node,
    /// too.
    ///
    /// # Errors
    /// The member cannot be reached or does not belong to the cluster.
    pub async fn connect(
        &self,
        address: &str,
        kind: ConnectionKind,
    ) -> io::Result<(Box<dyn MemberStream>, u32)> {
        let mut stream = link::connect(address, self.tls.as_ref()).await?;
        let node = self.call(&mut stream, kind).await?;
        Ok((stream, node))
    }

    /// Proves to the member at the other end that this node belongs to the cluster, and checks that the member does. Returns
    /// its node.
    ///
    /// # Errors
    /// It does not, or the connection ends.
    async fn call(&self, stream: &mut Box<dyn MemberStream>, kind: ConnectionKind) -> io::Result<u32> {
        let mut transcript = MAGIC.to_vec();
        transcript.push(kind.number());
        transcript.extend_from_slice(&self.node.to_le_bytes());
        transcript.push(self.cluster.len() as u8);
        transcript.extend_from_slice(self.cluster.as_bytes());
        transcript.extend_from_slice(&random_nonce()?);
        let exchange = async {
            stream.write_all(&transcript).await?;
            stream.flush().await?;
            let mut answer = [0; 4 + 32 + 32];
            stream.read_exact(&mut answer).await.map_err(|error| refused(&error))?;
            let (told, proof) = answer.split_at(36);
            transcript.extend_from_slice(told);
            self.mac(b"answer", &transcript)?.verify_slice(proof).map_err(|_| wrong_secret())?;
            let proof = self.mac(b"call", &transcript)?.finalize().into_bytes();
            stream.write_all(&proof).await?;
            stream.flush().await?;
            Ok(u32::from_le_bytes([told[0], told[1], told[2], told[3]]))
        };
        tokio::time::timeout(HANDSHAKE_TIME, exchange).await?
    }

    /// The other side of [`Self::call`]. Returns the caller's node and what it wants.
    ///
    /// # Errors
    /// The caller does not belong to the cluster, or the connection ends.
    pub async fn answer(&self, stream: &mut Box<dyn MemberStream>) -> io::Result<(u32, ConnectionKind)> {
        let exchange = async {
            let mut head = [0; 11];
            stream.read_exact(&mut head).await?;
            let kind = ConnectionKind::of(head[5]).filter(|_| head.starts_with(MAGIC));
            let kind = kind.ok_or_else(|| invalid("the caller does not speak the protocol of clusters"))?;
            let node = u32::from_le_bytes([head[6], head[7], head[8], head[9]]);
            let mut rest = vec![0; usize::from(head[10]) + 32];
            stream.read_exact(&mut rest).await?;
            if &rest[..usize::from(head[10])] != self.cluster.as_bytes() {
                return Err(invalid("the caller belongs to another cluster"));
            }
            let mut transcript = [&head[..], &rest].concat();
            let mut answer = self.node.to_le_bytes().to_vec();
            answer.extend_from_slice(&random_nonce()?);
            transcript.extend_from_slice(&answer);
            answer.extend_from_slice(&self.mac(b"answer", &transcript)?.finalize().into_bytes());
            stream.write_all(&answer).await?;
            stream.flush().await?;
            let mut proof = [0; 32];
            stream.read_exact(&mut proof).await?;
            self.mac(b"call", &transcript)?.verify_slice(&proof).map_err(|_| wrong_secret())?;
            Ok((node, kind))
        };
        tokio::time::timeout(HANDSHAKE_TIME, exchange).await?
    }
}

pub(crate) fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn wrong_secret() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the other node has another secret; give all nodes the same one",
    )
}

fn refused(error: &io::Error) -> io::Error {
    let why = format!(
        "the other node refused the connection ({error}); compare the name and the secret of the cluster"
    );
    io::Error::new(error.kind(), why)
}

/// Writes a frame. At return, the system has all of it, so that the connection may be closed.
///
/// # Errors
/// The connection has ended.
pub async fn write_frame(stream: &mut (impl AsyncWriteExt + Unpin), parts: &[&[u8]]) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(4 + length);
    frame.extend_from_slice(&(length as u32).to_le_bytes());
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    stream.write_all(&frame).await?;
    // TLS accepts bytes that it has not passed on, and would keep them until the next frame, or lose them with the connection.
    stream.flush().await
}

/// Reads a frame.
///
/// # Errors
/// The connection has ended, or the frame is too long.
pub async fn read_frame(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Bytes> {
    let length = stream.read_u32_le().await?;
    if length > FRAME_BYTES_MAX {
        return Err(invalid("a frame is too long"));
    }
    let mut frame = vec![0; length as usize];
    stream.read_exact(&mut frame).await?;
    Ok(frame.into())
}

/// The connections of a member to the others.
#[derive(Debug)]
pub(crate) struct Network {
    peers: BTreeMap<u32, mpsc::Sender<Vec<u8>>>,
    greeting: Arc<RwLock<Option<MemberGreeting>>>,
}

impl Network {
    /// Connects to all peers, now and whenever a connection ends. Others hear nothing about this member before
    /// [`Self::introduce`]: a node that takes it for one without a group would begin a second one with it.
    pub(crate) fn start(
        runtime: &tokio::runtime::Handle,
        credentials: &Arc<MemberCredentials>,
        peers: &BTreeMap<u32, String>,
    ) -> Self {
        let greeting = Arc::default();
        let peers = peers
            .iter()
            .map(|(node, address)| {
                let (sender, queue) = mpsc::channel(QUEUE_MAX);
                let greeting = Arc::clone(&greeting);
                let peer = Peer { node: *node, address: address.clone(), greeting };
                runtime.spawn(peer.keep_connected(Arc::clone(credentials), queue));
                (*node, sender)
            })
            .collect();
        Self { peers, greeting }
    }

    /// Sends a message of a group to its receiver's node. If the queue is full it is lost, and the algorithm repeats it.
    pub(crate) fn send(&self, group: u64, message: &ReplicaMessage) {
        let Some(queue) = message.to().and_then(|to| self.peers.get(&to.node())) else { return };
        let mut frame = vec![MESSAGE];
        frame.extend_from_slice(&group.to_le_bytes());
        message.encode(&mut frame);
        let _ = queue.try_send(frame);
    }

    /// Sets what this member tells about itself.
    pub(crate) fn introduce(&self, greeting: MemberGreeting) {
        *self.greeting.write().unwrap_or_else(PoisonError::into_inner) = Some(greeting);
    }
}

struct Peer {
    node: u32,
    address: String,
    greeting: Arc<RwLock<Option<MemberGreeting>>>,
}

impl Peer {
    async fn keep_connected(self, credentials: Arc<MemberCredentials>, mut queue: mpsc::Receiver<Vec<u8>>) {
        let mut last = String::new();
        loop {
            let why = match self.converse(&credentials, &mut queue).await {
                Ok(()) => return,
                Err(error) => error.to_string(),
            };
            if why != last {
                tracing::warn!(
                    node = self.node,
                    address = self.address,
                    why,
                    "no connection to a node of the cluster; trying again"
                );
                last = why;
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }

    /// Sends until the connection ends. `Ok`: this member ends.
    async fn converse(
        &self,
        credentials: &MemberCredentials,
        queue: &mut mpsc::Receiver<Vec<u8>>,
    ) -> io::Result<()> {
        let (stream, node) = credentials.connect(&self.address, ConnectionKind::Messages).await?;
        if node != self.node {
            let why = format!("node {node} answers at the address of node {}", self.node);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        // Messages that waited are out of date.
        while queue.try_recv().is_ok() {}
        let mut greet = tokio::time::interval(GREETING_INTERVAL);
        let (mut reading, mut writing) = tokio::io::split(stream);
        let mut nothing = [0];
        loop {
            tokio::select! {
                frame = queue.recv() => match frame {
                    Some(frame) => write_frame(&mut writing, &[&frame]).await?,
                    None => return Ok(()),
                },
                _ = greet.tick() => {
                    let greeting = self.greeting.read().unwrap_or_else(PoisonError::into_inner).clone();
                    if let Some(mut greeting) = greeting {
                        if let Some(report) = &mut greeting.report {
                            report.sent_ms = clock_ms();
                        }
                        write_frame(&mut writing, &[&[GREETING], &serde_json::to_vec(&greeting)?]).await?;
                    }
                }
                // The answerer sends nothing: this notices that the connection has ended.
                _ = reading.read(&mut nothing) => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }
}
