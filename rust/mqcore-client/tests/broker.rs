//! The client against the real broker, in this process and over a socket.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mqcore_broker::model::options::{
    ChannelOptions as BrokerChannelOptions, QueueOptions as BrokerQueueOptions,
};
use mqcore_client::address::{BrokerAddress, QueueAddress};
use mqcore_client::client::Client;
use mqcore_client::config::{ClientConfig, Transport};
use mqcore_client::confirmations::{Confirmation, ConfirmationTicket, Confirmations};
use mqcore_client::consume::{Delivered, Settlement};
use mqcore_client::conversation::AckedBy;
use mqcore_client::error::{ClientError, StatusMeaning};
use mqcore_client::models::{ChannelOptions, QueueOptions, QueueStatus};
use mqcore_client::publish::{BatchMessage, PublishOptions};
use mqcore_client::publish_now::PublishNow;
use mqcore_client::pull::PullOptions;
use mqcore_server::config::{Config, Protocol};
use mqcore_server::handler::NoHandlers;
use mqcore_server::server::Server;
use tokio::sync::Notify;

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
        let mut pulled = client.pull(&queue, &PullOptions::default()).await.unwrap();
        let messages = pulled.take();
        assert_eq!(messages[0].message().body_slice(), [expected]);
        assert_eq!(pulled.remaining, Some((0, u64::from(4 - expected))));
        messages[0].ack();
    }
    assert!(client.pull(&queue, &PullOptions::default()).await.unwrap().take().is_empty());
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

/// Outcomes of messages that were published without waiting.
#[derive(Debug, Default)]
struct Collected {
    outcomes: Mutex<Vec<(u64, Result<Confirmation, ClientError>)>>,
    woken: Notify,
}

impl Confirmations for Collected {
    fn put(&self, ticket: ConfirmationTicket, outcome: Result<Confirmation, ClientError>) -> bool {
        let mut outcomes = self.outcomes.lock().unwrap();
        outcomes.push((ticket.number, outcome));
        outcomes.len() == 1
    }

    fn wake(&self) {
        self.woken.notify_one();
    }
}

impl Collected {
    /// Takes outcomes as they come, until there are so many.
    async fn take(&self, count: usize) -> Vec<(u64, Result<Confirmation, ClientError>)> {
        let mut all = Vec::new();
        while all.len() < count {
            tokio::time::timeout(Duration::from_secs(10), self.woken.notified()).await.unwrap();
            all.append(&mut self.outcomes.lock().unwrap());
        }
        all
    }
}

#[tokio::test]
async fn messages_published_without_waiting_keep_their_order_and_are_all_confirmed() {
    const MESSAGES: u64 = 1_000;
    let server = broker().await;
    for client in [over_tcp(&server).await, inside(&server).await] {
        let queue = QueueAddress::new("orders", 7).unwrap();
        let options = QueueOptions { status: Some(QueueStatus::Pull), ..QueueOptions::default() };
        client.create_queue(&queue, &options).await.unwrap();
        let collected = Arc::new(Collected::default());
        let confirmations: Arc<dyn Confirmations> = collected.clone();
        let (confirmed, unconfirmed) =
            (PublishOptions::default(), PublishOptions { confirm: false, ..PublishOptions::default() });
        for number in 0..MESSAGES {
            let body = number.to_le_bytes();
            let ticket = ConfirmationTicket { slot: 0, number };
            let published = if number % 2 == 0 {
                client.publish_now(&queue, &body, &confirmed, Some((&confirmations, ticket)))
            } else {
                client.publish_now(&queue, &body, &unconfirmed, None)
            };
            assert!(matches!(published, Ok(PublishNow::Queued { .. })), "{published:?}");
        }
        client.flush();
        let outcomes = collected.take(MESSAGES as usize / 2).await;
        let expected: Vec<u64> = (0..MESSAGES).step_by(2).collect();
        assert_eq!(outcomes.iter().map(|(number, _)| *number).collect::<Vec<_>>(), expected);
        assert!(outcomes.iter().all(|(_, outcome)| outcome.as_ref().is_ok_and(|c| c.by == AckedBy::Server)));
        let pull = PullOptions { count: MESSAGES as u32, ..PullOptions::default() };
        let pulled = client.pull(&queue, &pull).await.unwrap().take();
        let bodies = pulled.iter().map(|message| message.message().body_slice().to_vec());
        assert!(bodies.eq((0..MESSAGES).map(|number| number.to_le_bytes().to_vec())));
        for message in &pulled {
            message.ack();
        }
        client.remove_queue(&queue).await.unwrap();
    }
    server.stop(Duration::from_secs(1)).await;
}

/// Asks for a count until it is `expected`.
async fn await_count(expected: u64, count: impl AsyncFn() -> u64) {
    let reached = async {
        while count().await != expected {
            tokio::time::sleep(Duration::from_millis(1)).await
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reached).await.unwrap();
}

#[tokio::test]
async fn what_no_call_waits_for_leaves_without_a_flush() {
    let server = broker().await;
    let observer = over_tcp(&server).await;
    for (id, client) in [(9, over_tcp(&server).await), (10, inside(&server).await)] {
        let queue = create(&client, id, QueueStatus::Push).await;
        let options = PublishOptions { confirm: false, ..PublishOptions::default() };
        let mut messages = 0;
        // Until the connection task lingers, each message wakes it.
        loop {
            messages += 1;
            match client.publish_now(&queue, b"x", &options, None) {
                Ok(PublishNow::Queued { unwritten: true, .. }) => break,
                Ok(PublishNow::Queued { .. }) => tokio::time::sleep(Duration::from_micros(50)).await,
                other => panic!("{other:?}"),
            }
        }
        await_count(messages, async || observer.queue(&queue).await.unwrap().received_messages).await;
        // A consumer that acknowledges more and more before it waits, and does not wait in the end.
        let consumer = client.consume(&queue, 1_000).await.unwrap();
        let mut acknowledged = 0;
        while acknowledged < messages {
            for delivered in consumer.next_batch(1 + acknowledged as usize).await {
                assert_eq!(delivered.ack(), Settlement::Sent);
                acknowledged += 1;
            }
        }
        await_count(messages, async || observer.queue(&queue).await.unwrap().acks).await;
    }
    server.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_consumer_with_a_prefetch_of_one_gets_every_message() {
    const MESSAGES: usize = 500;
    let server = broker().await;
    for (id, client) in [(11, over_tcp(&server).await), (12, inside(&server).await)] {
        let queue = create(&client, id, QueueStatus::Push).await;
        let messages = vec![BatchMessage::default(); MESSAGES];
        client.publish_many(&queue, &messages, &PublishOptions::default()).await;
        // With a prefetch of 1, each message comes after the acknowledgement of the one before.
        let consumer = client.consume(&queue, 1).await.unwrap();
        for _ in 0..MESSAGES {
            let next = tokio::time::timeout(Duration::from_secs(20), consumer.next_batch(1)).await.unwrap();
            assert_eq!(next[0].ack(), Settlement::Sent);
        }
    }
    server.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn late_confirmations_of_messages_published_without_waiting_are_timeouts() {
    let server = broker().await;
    let client = over_tcp(&server).await;
    let queue = QueueAddress::new("orders", 8).unwrap();
    // The confirmation waits for a consumer, and there is none.
    let options = QueueOptions {
        status: Some(QueueStatus::Pull),
        message_delivery_handler: Some("ack-on-consume".into()),
        ..QueueOptions::default()
    };
    client.create_queue(&queue, &options).await.unwrap();
    let collected = Arc::new(Collected::default());
    let confirmations: Arc<dyn Confirmations> = collected.clone();
    let publish = |number, timeout| {
        let options = PublishOptions { timeout: Some(timeout), ..PublishOptions::default() };
        let ticket = ConfirmationTicket { slot: 0, number };
        let published = client.publish_now(&queue, b"x", &options, Some((&confirmations, ticket)));
        client.flush();
        let Ok(PublishNow::Queued { id, .. }) = published else { panic!("{published:?}") };
        id
    };
    let forgotten = publish(1, Duration::from_millis(10));
    client.forget_confirmation(&forgotten);
    publish(2, Duration::from_secs(3600));
    publish(3, Duration::from_millis(50));
    let late = collected.take(1).await;
    assert!(matches!(&*late, [(3, Err(ClientError::ConfirmTimeout { .. }))]), "{late:?}");
    publish(4, Duration::from_millis(50));
    let late = collected.take(1).await;
    assert!(matches!(&*late, [(4, Err(ClientError::ConfirmTimeout { .. }))]), "{late:?}");
    client.abort();
    let lost = collected.take(1).await;
    assert!(matches!(&*lost, [(2, Err(ClientError::ConnectionLost { .. }))]), "{lost:?}");
    assert_eq!(client.publish_now(&queue, b"x", &PublishOptions::default(), None), Ok(PublishNow::NotNow));
    let closed = client.publish_now(
        &queue,
        b"x",
        &PublishOptions { confirm: false, ..PublishOptions::default() },
        None,
    );
    assert!(matches!(closed, Err(ClientError::Closed)), "{closed:?}");
    server.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn lists_of_more_than_a_page_are_complete_and_in_order() {
    let server = broker().await;
    let client = inside(&server).await;
    let names: Vec<_> = (0..2_300).map(|number| format!("c{number:04}")).collect();
    for name in &names {
        client.create_channel(name, &ChannelOptions::default()).await.unwrap();
    }
    for id in 0..1_200 {
        let queue = QueueAddress::new("c0000", id).unwrap();
        client.create_queue(&queue, &QueueOptions::default()).await.unwrap();
    }
    let listed = client.channels(None).await.unwrap();
    assert_eq!(listed.iter().map(|channel| &*channel.name).collect::<Vec<_>>(), names);
    assert_eq!(client.channels(Some("*99")).await.unwrap().len(), 23);
    let queues = client.queues("c0000").await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.id).collect::<Vec<_>>(), (0..1_200).collect::<Vec<_>>());
    assert_eq!(client.clients(None).await.unwrap().len(), 1);
    assert!(client.routers(None).await.unwrap().is_empty());
    assert!(client.channel_consumers("c0000").await.unwrap().is_empty());
}
