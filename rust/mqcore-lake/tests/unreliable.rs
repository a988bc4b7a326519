//! An object store in memory whose requests fail on demand: before they take effect, after it, or with an effect that comes
//! later.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing happens.
    Refused,
    /// It happens, and the response is lost.
    Unanswered,
    /// It happens when [`Unreliable::deliver`] is called, if its condition holds then.
    Delayed,
}

/// Requests that a store has served.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Served {
    pub(crate) puts: u64,
    pub(crate) put_bytes: u64,
    pub(crate) gets: u64,
    pub(crate) got_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    served: Served,
    /// The number of changing requests until the failure, and its kind.
    failure: Option<(u64, Failure)>,
    /// All later requests fail too.
    is_down: bool,
    delayed: VecDeque<(Path, PutPayload, PutMode)>,
}

/// The store.
#[derive(Debug, Clone)]
pub(crate) struct Unreliable {
    objects: Arc<InMemory>,
    state: Arc<Mutex<State>>,
    /// Overwrites objects in spite of a condition.
    pub(crate) ignores_conditions: bool,
}

impl Unreliable {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self { objects: Arc::default(), state: Arc::default(), ignores_conditions: false }
    }

    /// Makes the change after `after` others fail, and all requests after it.
    pub(crate) fn fail(&self, after: u64, failure: Failure) {
        self.state.lock().unwrap().failure = Some((after, failure));
    }

    /// Makes the store work again.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        (state.failure, state.is_down) = (None, false);
    }

    /// Delayed requests arrive. Returns how many took effect.
    pub(crate) async fn deliver(&self) -> usize {
        let delayed = std::mem::take(&mut self.state.lock().unwrap().delayed);
        let mut effective = 0;
        for (path, payload, mode) in delayed {
            let options = PutOptions { mode, ..PutOptions::default() };
            effective += usize::from(self.objects.put_opts(&path, payload, options).await.is_ok());
        }
        effective
    }

    /// Requests so far.
    pub(crate) fn served(&self) -> Served {
        self.state.lock().unwrap().served
    }

    /// Names of all objects.
    pub(crate) async fn names(&self) -> Vec<String> {
        let found: Vec<_> = self.objects.list(None).collect().await;
        found.into_iter().map(|meta| meta.expect("memory").location.to_string()).collect()
    }

    /// Decides about a changing request.
    fn change(&self) -> std::result::Result<Option<Failure>, Error> {
        let mut state = self.state.lock().unwrap();
        if state.is_down {
            return Err(unreachable());
        }
        match state.failure {
            Some((0, failure)) => {
                (state.failure, state.is_down) = (None, true);
                Ok(Some(failure))
            }
            Some((left, failure)) => {
                state.failure = Some((left - 1, failure));
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn read(&self) -> std::result::Result<(), Error> {
        if self.state.lock().unwrap().is_down { Err(unreachable()) } else { Ok(()) }
    }
}

fn unreachable() -> Error {
    Error::Generic { store: "unreliable", source: "the store does not answer".into() }
}

impl fmt::Display for Unreliable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("unreliable")
    }
}

#[async_trait]
impl ObjectStore for Unreliable {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        if self.ignores_conditions {
            options.mode = PutMode::Overwrite;
        }
        {
            let served = &mut self.state.lock().unwrap().served;
            served.puts += 1;
            served.put_bytes += payload.content_length() as u64;
        }
        match self.change()? {
            None => self.objects.put_opts(path, payload, options).await,
            Some(Failure::Refused) => Err(unreachable()),
            Some(Failure::Unanswered) => {
                self.objects.put_opts(path, payload, options).await?;
                Err(unreachable())
            }
            Some(Failure::Delayed) => {
                self.state.lock().unwrap().delayed.push_back((path.clone(), payload, options.mode));
                Err(unreachable())
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.read()?;
        let result = self.objects.get_opts(path, options).await?;
        let served = &mut self.state.lock().unwrap().served;
        served.gets += 1;
        served.got_bytes += result.range.end - result.range.start;
        Ok(result)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        paths
            .then(move |path| {
                let store = store.clone();
                async move {
                    let path = path?;
                    match store.change()? {
                        None => store.objects.delete(&path).await.map(|()| path),
                        Some(Failure::Refused | Failure::Delayed) => Err(unreachable()),
                        Some(Failure::Unanswered) => {
                            store.objects.delete(&path).await?;
                            Err(unreachable())
                        }
                    }
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.read()?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
