//! Places for connections and requests: peers that send nothing, or half a request, block no other peer.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Maximum connections on which no request is processed. Above it, the one that has waited longest is closed.
const WAITING_MAX: usize = 256;
/// Maximum requests that are processed at the same time, without health checks. Further ones wait.
const REQUESTS_MAX: usize = 64;

/// The places of the admin side.
#[derive(Debug)]
pub(super) struct Places {
    waiting: Mutex<Waiting>,
    requests: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The connections that have to go if there are too many, by the time since which they wait.
    by_age: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    places: Arc<Places>,
    evicted: Arc<Notify>,
    /// Its key in [`Waiting`]; 0 while a request is processed.
    waits_as: AtomicU64,
}

/// The place of a request that is processed. The connection stays until it is dropped.
#[derive(Debug)]
pub(super) struct RequestPlace {
    connection: Arc<ConnectionPlace>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), requests: Arc::new(Semaphore::new(REQUESTS_MAX)) })
    }

    /// A place for a new connection.
    pub(super) fn enter(self: &Arc<Self>) -> Arc<ConnectionPlace> {
        let connection = ConnectionPlace {
            places: Arc::clone(self),
            evicted: Arc::default(),
            waits_as: AtomicU64::new(0),
        };
        connection.wait();
        Arc::new(connection)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPlace {
    /// Ends when the connection has to make room for others.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Waits for the place of a request.
    pub(super) async fn begin(self: &Arc<Self>) -> RequestPlace {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.places.requests).acquire_owned().await.ok();
        self.stop_waiting();
        RequestPlace { connection: Arc::clone(self), _permit: permit }
    }

    fn wait(&self) {
        let mut waiting = self.places.lock();
        waiting.next += 1;
        let number = waiting.next;
        waiting.by_age.insert(number, Arc::clone(&self.evicted));
        self.waits_as.store(number, Ordering::Relaxed);
        if waiting.by_age.len() > WAITING_MAX
            && let Some((_, longest)) = waiting.by_age.pop_first()
        {
            longest.notify_one();
        }
    }

    fn stop_waiting(&self) {
        let number = self.waits_as.swap(0, Ordering::Relaxed);
        self.places.lock().by_age.remove(&number);
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.connection.wait();
    }
}

/// A response that keeps the place of its request until it is sent.
pub(super) struct HeldBody {
    body: Body,
    _place: RequestPlace,
}

impl HeldBody {
    pub(super) fn new(body: Body, place: RequestPlace) -> Self {
        Self { body, _place: place }
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future as _;
    use std::task::Waker;

    fn is_evicted(place: &ConnectionPlace) -> bool {
        let mut evicted = Box::pin(place.evicted());
        evicted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test]
    async fn connections_without_a_request_make_room_the_oldest_first() {
        let places = Places::new();
        let busy = places.enter();
        let request = busy.begin().await;
        let waiting: Vec<_> = (0..WAITING_MAX + 3).map(|_| places.enter()).collect();
        let evicted: Vec<_> = waiting.iter().map(|place| is_evicted(place)).collect();
        assert_eq!(evicted.iter().filter(|evicted| **evicted).count(), 3);
        assert!(evicted[..3].iter().all(|evicted| *evicted));
        assert!(!is_evicted(&busy));
        drop(request);
        assert!(is_evicted(&waiting[3]), "the request is over, so its connection waits again");
        drop(waiting);
        assert_eq!(places.lock().by_age.len(), 1);
        drop(busy);
        assert!(places.lock().by_age.is_empty());
    }

    #[tokio::test]
    async fn requests_wait_for_a_place() {
        let places = Places::new();
        let mut requests = Vec::new();
        for _ in 0..REQUESTS_MAX {
            requests.push(places.enter().begin().await);
        }
        let one_more = places.enter();
        let mut waits = Box::pin(one_more.begin());
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        requests.pop();
        waits.await;
    }
}
