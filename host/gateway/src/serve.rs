//! A running server, and how it is stopped without losing an answer.

use crate::reload::Reloader;
use crate::service::PipelineService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_api::{Lanes, Server};
use tidegate_pipeline::{ModelBackend, Pipeline};
use tidegate_shared::Shared;
use tokio_util::task::AbortOnDropHandle;

/// A server that answers. Dropping it ends it at once, and with it all that it holds; [`Running::stop`] loses no answer.
pub struct Running {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Where the administrator's routes are, where they have an address of their own.
    pub admin_addr: Option<SocketAddr>,
    /// One line for each fact about it.
    pub facts: Vec<String>,
    pub(crate) server: Server,
    /// How long a server that is told to stop says so before it does.
    pub(crate) settle: Duration,
    /// Let go of after what follows answers, which runs there too.
    pub(crate) _lanes: Arc<Lanes>,
    pub(crate) service: Arc<PipelineService>,
    pub(crate) reloader: Arc<Reloader>,
    /// Tidies what is kept.
    pub(crate) tidying: Option<AbortOnDropHandle<()>>,
    /// Look for changed files, where that is wanted, and for keys of others; tend the metrics.
    pub(crate) watchers: Vec<AbortOnDropHandle<()>>,
    /// Tell other gateways that this one is there, and what it has set aside: as long as it makes answers.
    pub(crate) signs: Vec<AbortOnDropHandle<()>>,
    /// Let go of at the very end.
    pub(crate) shared: Option<Shared>,
}

/// For what follows answers, once the last one has left.
const AFTERWORK: Duration = Duration::from_secs(2);

impl Running {
    /// Says that it is not ready for as long as its config has it, then takes no new requests, gives running answers `grace` to
    /// end, then stops the engines.
    pub async fn stop(self, grace: Duration) {
        self.server.settle(self.settle).await;
        self.watchers.iter().for_each(AbortOnDropHandle::abort);
        self.server.stop(grace).await;
        let pipeline = self.service.pipeline();
        if !pipeline.settle(AFTERWORK).await {
            tracing::warn!("memories or observers were still at work, and were cut off");
        }
        for model in pipeline.models().iter() {
            if let ModelBackend::Engine(engine) = &model.backend {
                engine.handle.shutdown(Duration::from_secs(1)).await;
            }
        }
        // Until here: what a silent gateway has begun is made by another, and what it holds is given to others.
        self.signs.iter().chain(&self.tidying).for_each(AbortOnDropHandle::abort);
        if let Some(books) = self.service.books() {
            books.close().await;
        }
        if let Some(shared) = self.shared {
            shared.close().await;
        }
    }

    /// The pipeline that answers new requests, for tests.
    pub fn pipeline(&self) -> Arc<Pipeline> {
        self.service.pipeline()
    }

    /// Takes the config file and the plugins anew, whole or not at all; one line for each part that runs then.
    pub async fn reload(&self) -> anyhow::Result<Vec<String>> {
        self.reloader.reload().await
    }
}
