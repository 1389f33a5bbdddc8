//! What an endpoint gets.

use crate::administration::Administration;
use crate::backend::{Aborted, Answers, RequestContext};
use crate::body::{Body, Response};
use crate::ids;
use crate::kept::store_failed;
use crate::reading;
use crate::receive;
use crate::server::Api;
use crate::socket::Activity;
use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_store::{Conversations, StoreError};
use tidegate_turns::Owner;
use tidegate_types::{Caller, Fault, Reject, RejectKind, RequestId, TenantId};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// One request on its way to its answer.
pub(crate) struct Exchange {
    pub(crate) api: Arc<Api>,
    pub(crate) request_id: RequestId,
    /// Becomes part of the answer's own id.
    pub(crate) unique: String,
    pub(crate) caller: Arc<Caller>,
    /// Of the config by which the caller was let in, however long the body takes to come.
    pub(crate) answers: Arc<dyn Answers>,
    pub(crate) peer: SocketAddr,
    /// What stands for the `{}` and `*` of the route's path, joined by slashes.
    pub(crate) rest: String,
    pub(crate) request: Request<Inbound>,
    /// Cancelled when running answers are to end.
    pub(crate) cutting: CancellationToken,
    /// The name of what is made, where a key was claimed for it.
    pub(crate) made: Option<String>,
    /// Whether the answer may be a stream; asked before that costs anything.
    pub(crate) may_stream: Result<(), Reject>,
}

/// What an answer to an administrator says of the key, project or person that it is about. The rest may be secret.
#[derive(Default, Deserialize)]
struct Named {
    id: Option<String>,
    name: Option<String>,
}

/// The body of a request.
pub(crate) enum Inbound {
    /// As it arrives, on a connection that wants to know whether it was read.
    Arriving(Incoming, Arc<Activity>),
    /// As it was read before.
    Whole(Bytes),
}

impl Exchange {
    pub(crate) fn context(&self) -> RequestContext {
        let hops = self.request.headers().get(HOPS).and_then(|value| value.to_str().ok()?.parse().ok());
        RequestContext {
            request_id: self.request_id.clone(),
            generation: self.unique.as_str().into(),
            caller: Arc::clone(&self.caller),
            answers: Arc::clone(&self.answers),
            retention: self.caller.scope.retention,
            hops: hops.unwrap_or(0),
            history: None,
            notebook: None,
            aborted: Aborted::default(),
        }
    }

    /// The whole body, which must be JSON. It is there once. Private, so that a large one is parsed on no connection's thread.
    async fn body(&mut self) -> Result<Bytes, Reject> {
        let body = std::mem::replace(self.request.body_mut(), Inbound::Whole(Bytes::new()));
        receive::json(&self.api, &self.caller, self.request.headers(), body).await
    }

    /// What `parse` makes of it.
    pub(crate) async fn read<T: Send + 'static>(
        &mut self,
        parse: impl FnOnce(&[u8]) -> Result<T, Reject> + Send + 'static,
    ) -> Result<T, Reject> {
        let body = self.body().await?;
        reading::read(self.api.room_for_bodies(&self.caller), body, parse).await
    }

    /// The body of a change by an administrator, as it came: of a size that is parsed at once.
    pub(crate) async fn settings(&mut self) -> Result<Bytes, Reject> {
        let body = self.body().await?;
        if body.len() > MAX_SETTINGS_BYTES {
            let message = format!(
                "the request's body has {} bytes; what describes a key, a project or a person has at most {MAX_SETTINGS_BYTES}",
                body.len()
            );
            return Err(Reject::new(RejectKind::TooLarge, Fault::Client, message));
        }
        Ok(body)
    }

    /// The conversations, to be written for the caller.
    pub(crate) fn writable(&self) -> Result<Conversations, Reject> {
        self.api.writable(&self.caller).cloned()
    }

    /// Reads much of the conversations, once it is the caller's turn.
    pub(crate) async fn read_much<T, F>(&self, read: impl FnOnce(Conversations, TenantId) -> F) -> Result<T, Reject>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (conversations, owner) = (self.api.conversations()?, self.caller.owner().clone());
        let whose = Owner::of(&self.caller);
        let found = conversations.in_turn(&whose, |conversations| read(conversations, owner));
        found.await.map_err(store_failed)
    }

    /// What the service says to an administrator's wish. A change that has begun comes to its end, at this gateway too, and to the
    /// log with who made it, though that one may not wait for it.
    pub(crate) async fn administer(self, what: Administration) -> Result<Response, Reject> {
        if what.change().is_none() {
            return self.administered(what).await;
        }
        let tasks = self.api.tasks.clone();
        let changing = tasks.spawn(async move { self.administered(what).await }.in_current_span());
        changing.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))?
    }

    async fn administered(self, what: Administration) -> Result<Response, Reject> {
        let (change, project) = (what.change(), what.project());
        let said = self.api.service.administer(what, &self.caller).await?;
        if let Some(change) = change {
            let Named { id, name } = serde_json::from_slice(&said).unwrap_or_default();
            self.log_change(change, id.or(name).as_deref(), project.as_deref());
        }
        Ok(json(said))
    }

    /// Here and not with the request's end, since what has an idempotency key is done without its client, too.
    pub(crate) fn log_change(&self, change: &'static str, of: Option<&str>, project: Option<&str>) {
        let (id, tenant, key) = (self.request_id.as_str(), self.caller.tenant.as_str(), self.caller.name());
        tracing::info!(id, tenant, key, change, of, project);
    }

    /// A name for what is made, which nobody can guess.
    pub(crate) fn name(&mut self) -> Result<String, Reject> {
        self.made.take().map_or_else(ids::secret, Ok)
    }
}

/// A name of each model, endpoint and plugin that there could be has room.
const MAX_SETTINGS_BYTES: usize = 256 << 10;

/// Counts the gateways on the way; `tidegate-upstream` sends it.
const HOPS: &str = "x-tidegate-hops";

pub(crate) fn json(body: impl Into<Bytes>) -> Response {
    with_type("application/json", body)
}

pub(crate) fn with_type(kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::full(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
