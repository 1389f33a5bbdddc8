//! Spans and the headers by which traces go from program to program (W3C Trace Context).

use opentelemetry::Value;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The headers of a trace: where it is, and what other programs on its way have to say of it.
const HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// The span of a request that came in, within the trace that its headers name, or one of its own.
pub fn server<'a>(header: impl Fn(&'static str) -> Option<&'a str>) -> Span {
    let span = tracing::debug_span!("server", otel.kind = "server");
    if !span.is_disabled() {
        let parent = TraceContextPropagator::new().extract(&Incoming(HEADERS.map(|name| (name, header(name)))));
        // It fails where spans are logged and not exported.
        let _ = span.set_parent(parent);
    }
    span
}

/// Names a span by what has become known since it began.
pub fn name(span: &Span, name: &str) {
    if !span.is_disabled() {
        span.context().span().update_name(name.to_owned());
    }
}

/// Says something of a span.
pub fn note(span: &Span, key: &'static str, value: impl Into<Value>) {
    if !span.is_disabled() {
        span.set_attribute(key, value);
    }
}

/// Says that what the span is of has failed, and with what code.
pub fn fail(span: &Span, code: &str) {
    if !span.is_disabled() {
        span.set_attribute("error.type", code.to_owned());
        span.set_status(Status::error(code.to_owned()));
    }
}

/// What another program must be told, so that its spans become children of `span`: names and values of headers.
pub fn outgoing(span: &Span) -> Vec<(&'static str, String)> {
    let mut headers = Outgoing(Vec::new());
    if !span.is_disabled() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut headers);
    }
    headers.0
}

struct Incoming<'a>([(&'static str, Option<&'a str>); 2]);

impl Extractor for Incoming<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key))?.1
    }

    fn keys(&self) -> Vec<&str> {
        HEADERS.to_vec()
    }
}

struct Outgoing(Vec<(&'static str, String)>);

impl Injector for Outgoing {
    fn set(&mut self, key: &str, value: String) {
        let known = HEADERS.iter().find(|name| name.eq_ignore_ascii_case(key));
        if let Some(name) = known.filter(|_| !value.is_empty()) {
            self.0.push((name, value));
        }
    }
}
