//! Parameters that several requests have, for the documentation in `/openapi.json`.

use utoipa::IntoParams;

/// The queue in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the documentation reads the fields")]
pub(crate) struct QueueParameters {
    /// The channel of the queue; a slash is written %2F.
    channel: String,
    /// The number of the queue.
    id: u16,
}

/// The length of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the documentation reads the fields")]
pub(crate) struct LimitParameter {
    /// Maximum entries (100); at most 10,000.
    #[param(minimum = 0)]
    limit: Option<usize>,
}

/// The part of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the documentation reads the fields")]
pub(crate) struct PageParameters {
    /// Text that entries contain, in upper or lower case.
    filter: Option<String>,
    /// Entries to skip (0).
    #[param(minimum = 0)]
    offset: Option<usize>,
    /// Maximum entries (100); at most 10,000.
    #[param(minimum = 0)]
    limit: Option<usize>,
}

/// The order of queues.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the documentation reads the fields")]
pub(crate) struct OrderParameters {
    /// name, or the largest first: ready, delayed, in_flight, consumers, oldest, received, delivered, growth,
    /// dead_lettered.
    sort: Option<String>,
    /// 1: the other way around.
    #[param(minimum = 0, maximum = 1)]
    reverse: Option<u8>,
}
