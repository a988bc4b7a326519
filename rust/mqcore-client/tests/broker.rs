//! The client against the real broker, in this process and over a socket.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::options::{
    ChannelOptions as BrokerChannelOptions, QueueOptions as BrokerQueueOptions,
};
use mqcore_client::address::{BrokerAddress, QueueAddress};
use mqcore_client::client::Client;
use mqcore_client::config::{ClientConfig, Transport};
use mqcore_client::consume::{Delivered, Settlement};
use mqcore_client::error::{ClientError, StatusMeaning};
use mqcore_client::models::{QueueOptions, QueueStatus};
use mqcore_client::publish::{BatchMessage, PublishOptions};
use mqcore_client::pull::PullOptions;
use mqcore_server::config::{Config, Protocol};
use mqcore_server::handler::NoHandlers;
use mqcore_server::server::Server;

async fn broker() -> Server {
    let queue = BrokerQueueOptions { request_acknowledge: true, ..BrokerQueueOptions::default() };
    let config = Config {
        listeners: vec!["tmqp://127.0.0.1:0".parse().unwrap()],
        channel: BrokerChannelOptions { queue, ..BrokerChannelOptions::default() },
        ..Config::default()
    };
    Server::start(config, Vec::new(), Arc::new(NoHandlers)).await.unwrap()
}

async fn inside(server: &Server) -> Client {
    let server = server.clone();
    let open = move || Ok(server.connect_local(Protocol::Tmqp));
    Client::connect(ClientConfig::default(), Transport::Local(Arc::new(open))).await.unwrap()
}

async fn over_tcp(server: &Server) -> Client {
    let address = BrokerAddress::parse(&server.listeners()[0].address.to_string()).unwrap();
    Client::connect(ClientConfig::default(), Transport::Tcp(vec![address])).await.unwrap()
}

async fn create(client: &Client, id: u16, status: QueueStatus) -> QueueAddress {
    let queue = QueueAddress::new("orders", id).unwrap();
    let options = QueueOptions { status: Some(status), ..QueueOptions::default() };
    client.create_queue(&queue, &options).await.unwrap();
    queue
}

#[tokio::test]
async fn work_is_shared_and_nothing_is_lost_or_invented() {
    const MESSAGES: u32 = 5_000;
    let server = broker().await;
    let producer = over_tcp(&server).await;
    let queue = create(&producer, 1, QueueStatus::RoundRobin).await;
    let clients = [over_tcp(&server).await, inside(&server).await];
    let consume = |client: Client| {
        let queue = queue.clone();
        async move { client.consume(&queue, 100).await.unwrap() }
    };
    let [one, other] = clients.map(consume);
    let (one, other) = (one.await, other.await);
    let messages: Vec<BatchMessage> = (0..MESSAGES)
        .map(|n| BatchMessage { body: n.to_le_bytes().to_vec().into(), ..BatchMessage::default() })
        .collect();
    let take = |consumer: mqcore_client::consume::Consumer| async move {
        let mut seen = Vec::new();
        while let Ok(batch) = tokio::time::timeout(Duration::from_secs(2), consumer.next_batch(64)).await {
            for delivered in batch {
                seen.push(u32::from_le_bytes(delivered.message().body_slice().try_into().unwrap()));
                assert_eq!(delivered.ack(), Settlement::Sent);
            }
        }
        seen
    };
    let options = PublishOptions::default();
    let (receipts, of_one, of_other) =
        tokio::join!(producer.publish_many(&queue, &messages, &options), take(one), take(other));
    assert!(receipts.iter().all(Result::is_ok));
    assert!(of_one.len() > 100 && of_other.len() > 100, "{} and {}", of_one.len(), of_other.len());
    let mut all = [of_one, of_other].concat();
    all.sort_unstable();
    assert_eq!(all, (0..MESSAGES).collect::<Vec<_>>());
    let information = producer.queue(&queue).await.unwrap();
    assert_eq!((information.acks, information.messages), (u64::from(MESSAGES), 0));
    server.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn pulling_leaves_the_rest_and_repeats_nothing() {
    let server = broker().await;
    let client = inside(&server).await;
    let queue = create(&client, 2, QueueStatus::Pull).await;
    let messages: Vec<BatchMessage> =
        (0..5_u8).map(|n| BatchMessage { body: vec![n].into(), ..BatchMessage::default() }).collect();
    client.publish_many(&queue, &messages, &PublishOptions::default()).await;
    for expected in 0..5_u8 {
        let pulled = client.pull(&queue, &PullOptions::default()).await.unwrap();
        assert_eq!(pulled.messages[0].message().body_slice(), [expected]);
        assert_eq!(pulled.remaining, Some((0, u64::from(4 - expected))));
        pulled.messages[0].ack();
    }
    assert!(client.pull(&queue, &PullOptions::default()).await.unwrap().messages.is_empty());
    server.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_missing_queue_is_an_error_that_names_it() {
    let server = broker().await;
    let client = over_tcp(&server).await;
    let nowhere = QueueAddress::new("nowhere", 9).unwrap();
    let error = client.publish(&nowhere, b"x", &PublishOptions::default()).await.unwrap_err();
    let ClientError::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!((refusal.status(), &*refusal.target), (StatusMeaning::NotFound, "nowhere/9"));
    let error = client.consume(&nowhere, 1).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(refusal) if refusal.status() == StatusMeaning::NotFound));
    server.stop(Duration::from_secs(1)).await;
}

fn settle_all(batch: &[Delivered]) -> usize {
    for delivered in batch {
        assert_eq!(delivered.ack(), Settlement::Sent);
    }
    batch.len()
}

/// A message that arrives while its consumer is dropped has no owner: the client must requeue it before the
/// acknowledgement timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_that_arrive_while_a_consumer_is_dropped_are_requeued() {
    const MESSAGES: u32 = 4_000;
    let server = broker().await;
    let client = over_tcp(&server).await;
    let queue = QueueAddress::new("orders", 1).unwrap();
    let options = QueueOptions {
        status: Some(QueueStatus::RoundRobin),
        // Each round requeues the messages that it did not take; the requeue limit must not drop them.
        put_back_limit: Some(60_000),
        ..QueueOptions::default()
    };
    client.create_queue(&queue, &options).await.unwrap();
    let (producer, to) = (client.clone(), queue.clone());
    // Uses the same client, so that its parts compete.
    let publishing = tokio::spawn(async move {
        for start in (0..MESSAGES).step_by(10) {
            let message =
                |n: u32| BatchMessage { body: n.to_le_bytes().to_vec().into(), ..BatchMessage::default() };
            let messages: Vec<BatchMessage> = (start..start + 10).map(message).collect();
            let receipts = producer.publish_many(&to, &messages, &PublishOptions::default()).await;
            assert!(receipts.iter().all(Result::is_ok));
        }
    });
    let mut settled = 0;
    while !publishing.is_finished() {
        let consumer = client.consume(&queue, 100).await.unwrap();
        settled += settle_all(&consumer.next_batch(1).await);
    }
    publishing.await.unwrap();
    let consumer = client.consume(&queue, 1_000).await.unwrap();
    while let Ok(batch) = tokio::time::timeout(Duration::from_secs(2), consumer.next_batch(1_000)).await {
        settled += settle_all(&batch);
    }
    let information = client.queue(&queue).await.unwrap();
    assert_eq!((settled, information.messages), (MESSAGES as usize, 0));
    server.stop(Duration::from_secs(1)).await;
}
