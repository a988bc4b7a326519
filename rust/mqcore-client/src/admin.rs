//! Administration: channels, queues, clients and nodes, over the same connection.

use mqcore_wire::tmqp::header::key;
use mqcore_wire::tmqp::operation::Operation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::address::{Protocol, QueueAddress, channel_name};
use crate::client::Client;
use crate::error::ClientError;
use crate::models::{
    Binding, ChannelInformation, ChannelOptions, ClientInformation, NodeInformation, QueueInformation,
    QueueOptions, RouterInformation, RouterTest,
};
use crate::received::Received;
use crate::request::{Clear, Request};

/// Administrative operations. Each returns [`ClientError::Refused`] if the broker refuses (401: not permitted; 404: not
/// found; 481: exists already; 482: limit reached), [`ClientError::RequestTimeout`] or [`ClientError::ConnectionLost`].
///
/// Lists are fetched in pages, each of which may take the request timeout. An entry that is added or removed meanwhile may
/// or may not be listed.
#[allow(clippy::missing_errors_doc, reason = "the same for all, stated above")]
impl Client {
    /// Creates a channel.
    pub async fn create_channel(&self, channel: &str, options: &ChannelOptions) -> Result<(), ClientError> {
        self.done(&Request::create_channel(&channel_name(channel)?, json(options)?)).await
    }

    /// Changes options of a channel. Its queues keep theirs.
    pub async fn update_channel(&self, channel: &str, options: &ChannelOptions) -> Result<(), ClientError> {
        self.done(&Request::update_channel(&channel_name(channel)?, json(options)?)).await
    }

    /// Removes a channel with its queues and their messages.
    pub async fn remove_channel(&self, channel: &str) -> Result<(), ClientError> {
        self.done(&Request::remove_channel(&channel_name(channel)?)).await
    }

    /// Describes a channel.
    pub async fn channel(&self, channel: &str) -> Result<ChannelInformation, ClientError> {
        self.read(&Request::channel_information(&channel_name(channel)?)).await
    }

    /// Describes the channels whose name matches `*x*` (contains), `x*` (begins with), `*x` (ends with) or `x`
    /// (equals).
    pub async fn channels(&self, filter: Option<&str>) -> Result<Vec<ChannelInformation>, ClientError> {
        self.list(&Request::channel_list(filter)?).await
    }

    /// Describes the clients that have joined a channel.
    pub async fn channel_consumers(&self, channel: &str) -> Result<Vec<ClientInformation>, ClientError> {
        self.list(&Request::channel_consumers(&channel_name(channel)?)).await
    }

    /// Creates a queue, and its channel if that is missing.
    pub async fn create_queue(
        &self,
        queue: &QueueAddress,
        options: &QueueOptions,
    ) -> Result<(), ClientError> {
        self.done(&Request::create_queue(queue, json(options)?, options.tag.as_deref())?).await
    }

    /// Changes options of a queue, its status among them.
    pub async fn update_queue(
        &self,
        queue: &QueueAddress,
        options: &QueueOptions,
    ) -> Result<(), ClientError> {
        let mut body = json(options)?;
        if body.is_empty() {
            // An update without options still checks that the queue exists.
            body = b"{}".to_vec();
        }
        self.done(&Request::update_queue(queue, body)).await
    }

    /// Removes a queue with its messages.
    pub async fn remove_queue(&self, queue: &QueueAddress) -> Result<(), ClientError> {
        match self.protocol() {
            Protocol::Mqks => self.delete_mqks_queue(queue).await,
            _ => self.done(&Request::remove_queue(queue)).await,
        }
    }

    /// Removes stored messages of a queue.
    pub async fn clear_queue(&self, queue: &QueueAddress, clear: Clear) -> Result<(), ClientError> {
        self.done(&Request::clear_queue(queue, clear.high_priority, clear.normal)).await
    }

    /// Describes a queue.
    pub async fn queue(&self, queue: &QueueAddress) -> Result<QueueInformation, ClientError> {
        self.read(&Request::queue_information(queue)).await
    }

    /// Describes the queues of a channel.
    pub async fn queues(&self, channel: &str) -> Result<Vec<QueueInformation>, ClientError> {
        self.list(&Request::queue_list(&channel_name(channel)?)).await
    }

    /// Describes the clients whose type matches a filter; without one, all of them.
    pub async fn clients(&self, filter: Option<&str>) -> Result<Vec<ClientInformation>, ClientError> {
        self.list(&Request::client_list(filter)).await
    }

    /// Creates a router. Succeeds if there is one of this name and method (`distribute`, `round-robin`, `only-first`).
    pub async fn create_router(&self, router: &str, method: &str) -> Result<(), ClientError> {
        let what = (Operation::CreateRouter, "create router");
        self.done(&Request::router(what, router, &[(key::ROUTE_METHOD, method)], Vec::new())?).await
    }

    /// Enables or disables a router. A disabled one takes no messages.
    pub async fn enable_router(&self, router: &str, enabled: bool) -> Result<(), ClientError> {
        let word = if enabled { "yes" } else { "no" };
        let what = (Operation::EnableRouter, if enabled { "enable router" } else { "disable router" });
        self.done(&Request::router(what, router, &[(key::ENABLED, word)], Vec::new())?).await
    }

    /// Closes the connection of a client, of all with a name (`@name:NAME`) or of a type (`@type:KIND`). They may
    /// connect again.
    pub async fn disconnect(&self, client: &str) -> Result<(), ClientError> {
        self.done(&Request::router((Operation::Disconnect, "disconnect"), client, &[], Vec::new())?).await
    }

    /// Removes a router with its bindings. Succeeds if there is none.
    pub async fn remove_router(&self, router: &str) -> Result<(), ClientError> {
        let what = (Operation::RemoveRouter, "remove router");
        self.done(&Request::router(what, router, &[], Vec::new())?).await
    }

    /// Describes the routers whose name matches; without a filter, all of them.
    pub async fn routers(&self, filter: Option<&str>) -> Result<Vec<RouterInformation>, ClientError> {
        let what = (Operation::RouterList, "list routers");
        self.list(&Request::router(what, filter.unwrap_or(""), &[], Vec::new())?).await
    }

    /// Describes the bindings of a router.
    pub async fn bindings(&self, router: &str) -> Result<Vec<Binding>, ClientError> {
        let what = (Operation::BindingList, "list bindings of");
        self.read(&Request::router(what, router, &[], Vec::new())?).await
    }

    /// Adds a binding to a router.
    pub async fn add_binding(&self, router: &str, binding: &Binding) -> Result<(), ClientError> {
        let what = (Operation::AddBinding, "add a binding to");
        self.done(&Request::router(what, router, &[], json(binding)?)?).await
    }

    /// Removes a binding of a router. Succeeds if there is none of this name.
    pub async fn remove_binding(&self, router: &str, binding: &str) -> Result<(), ClientError> {
        let what = (Operation::RemoveBinding, "remove a binding of");
        self.done(&Request::router(what, router, &[(key::BINDING_NAME, binding)], Vec::new())?).await
    }

    /// Returns the route that a message would take, without sending it.
    pub async fn test_router(
        &self,
        router: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> Result<RouterTest, ClientError> {
        let what = (Operation::TestRoute, "test router");
        self.read(&Request::router(what, router, headers, body)?).await
    }

    /// Describes the nodes of the cluster.
    pub async fn nodes(&self) -> Result<Vec<NodeInformation>, ClientError> {
        self.read(&Request::node_list()).await
    }

    async fn done(&self, request: &Request) -> Result<(), ClientError> {
        self.shared.ask(request, None).await.map(drop)
    }

    async fn read<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        parse(request, &self.shared.ask(request, None).await?)
    }

    /// Reads a list page by page. Servers that know no pages answer with the whole list.
    async fn list<T: DeserializeOwned>(&self, request: &Request) -> Result<Vec<T>, ClientError> {
        let mut items = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let response = self.shared.ask(&request.page(after.as_deref())?, None).await?;
            items.append(&mut parse(request, &response)?);
            match response.header(key::NEXT_PAGE) {
                None => return Ok(items),
                Some(next) if after.as_deref() == Some(&*next) => {
                    return Err(bad_answer(request, format!("page {next:?} is followed by itself")));
                }
                Some(next) => after = Some(next.into_owned()),
            }
        }
    }
}

fn parse<T: DeserializeOwned>(request: &Request, response: &Received) -> Result<T, ClientError> {
    serde_json::from_slice(response.body_slice()).map_err(|error| bad_answer(request, error.to_string()))
}

fn bad_answer(request: &Request, why: String) -> ClientError {
    ClientError::BadAnswer { operation: request.operation, target: request.about.to_text(), why: why.into() }
}

/// Options as JSON; an empty body if there are none.
fn json(options: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    let text =
        serde_json::to_vec(options).map_err(|error| ClientError::invalid("options", error.to_string()))?;
    Ok(if text == b"{}" { Vec::new() } else { text })
}
