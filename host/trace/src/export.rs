//! The way of spans to a collector: OTLP over HTTP, in batches, from a thread of its own. Its queue is bounded: of a
//! collector that is slow or away a request never waits, and what does not fit is left out and said so in the log.

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use std::time::Duration;
use tidegate_egress::{CertificateDer, Connector, ConnectorConfig, EgressError};
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

/// For a connection, and for an answer to a batch.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For what is left when the program ends.
const LAST_BATCH: Duration = Duration::from_secs(5);
/// Of a collector's answer, which has nothing to say but errors.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// OTLP's path for spans, below the endpoint.
const PATH: &str = "/v1/traces";

/// Where spans go.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// The collector's OTLP/HTTP endpoint, `http://host:4318`.
    pub endpoint: String,
    /// What this program is called there.
    pub service: String,
    /// The part of all requests that is traced, 0 to 1, of those whose client does not say.
    pub sample: f64,
    /// Certificates that are trusted besides the public ones.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

/// Why traces do not start.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The endpoint is none.
    #[error("the traces' endpoint: {0}")]
    Endpoint(EgressError),
    /// The exporter does not take what it was given, from the environment for instance.
    #[error("the traces' exporter does not start: {0}")]
    Exporter(opentelemetry_otlp::ExporterBuildError),
}

// Not `#[from]`, which makes it the source too: the message has it, and who prints sources would say it twice.
impl From<EgressError> for TraceError {
    fn from(error: EgressError) -> Self {
        Self::Endpoint(error)
    }
}

impl From<opentelemetry_otlp::ExporterBuildError> for TraceError {
    fn from(error: opentelemetry_otlp::ExporterBuildError) -> Self {
        Self::Exporter(error)
    }
}

/// The exporter of this process.
pub struct Traces(SdkTracerProvider);

impl TraceConfig {
    /// Checks the endpoint; opens no connection.
    pub fn check(&self) -> Result<(), TraceError> {
        self.connector().map(drop)
    }

    fn connector(&self) -> Result<Connector, TraceError> {
        let mut config = ConnectorConfig::new(self.endpoint.trim_end_matches('/'));
        config.extra_roots.clone_from(&self.extra_roots);
        (config.connect_timeout, config.first_byte_timeout, config.idle_timeout) = (TIMEOUT, TIMEOUT, TIMEOUT);
        Ok(Connector::new(config)?)
    }
}

impl Traces {
    /// Starts to export; requests to the collector are made on `runtime`.
    pub fn start(config: &TraceConfig, runtime: Handle) -> Result<Self, TraceError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector { connector: config.connector()?, runtime })
            .with_endpoint(format!("{}{PATH}", config.endpoint.trim_end_matches('/')))
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(TIMEOUT)
            .build()?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name(config.service.clone()).with_attribute(version).build();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample)));
        Ok(Self(
            SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_sampler(sampler)
                .with_resource(resource)
                .build(),
        ))
    }

    /// What makes spans of this program's `tracing` into spans of a trace.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let ours = filter_fn(|metadata| {
            metadata.is_span()
                && *metadata.level() == tracing::Level::DEBUG
                && metadata.target().starts_with("tidegate")
        });
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("tidegate"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_filter(ours.with_max_level_hint(LevelFilter::DEBUG))
    }

    /// Sends what is left; waits for a collector that does not answer, but not for long. Not for a thread of the runtime.
    pub fn stop(self) {
        // What went wrong was logged.
        let _ = self.0.shutdown_with_timeout(LAST_BATCH);
    }
}

/// The collector, through the one way out.
struct Collector {
    connector: Connector,
    runtime: Handle,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Collector").field(&self.connector.origin()).finish()
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let connector = self.connector.clone();
        let (head, body) = request.into_parts();
        let request =
            tidegate_egress::Request { method: head.method, path: PATH.to_owned(), headers: head.headers, body };
        // The exporter's thread has no reactor.
        let answer = self.runtime.spawn(async move {
            let mut response = connector.send(&request).await?;
            let body = response.collect(MAX_ANSWER_BYTES).await?;
            Ok::<_, EgressError>((response.status, body))
        });
        let (status, body) = answer.await??;
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        Ok(response)
    }
}
