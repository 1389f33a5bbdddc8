//! Spans and the header by which traces go from program to program (W3C Trace Context).
//!
//! The standard's other header, `tracestate`, is left where it arrives: it is text that anybody may write, and would reach
//! the collector and every upstream. The standard lets who guards against that remove it ("Privacy of the tracestate
//! field"); the trace goes on by `traceparent`, which holds numbers only.

use opentelemetry::Value;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use std::ops::Deref;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Says where in a trace a request is.
const HEADER: &str = "traceparent";

/// A span of what goes on though nobody is in it, such as an answer that is read piece by piece: it ends when this is dropped.
/// One that is merely kept would end when it was last left, which is all that `tracing_opentelemetry` looks at.
#[derive(Debug)]
pub struct Lasting(Span);

impl Lasting {
    /// Has `span` last as long as this.
    pub fn of(span: Span) -> Self {
        Self(span)
    }
}

impl Deref for Lasting {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.0
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.in_scope(|| ());
    }
}

/// The span of a request that came in, within the trace that its header names, or one of its own.
pub fn server<'a>(header: impl Fn(&'static str) -> Option<&'a str>) -> Span {
    let span = tracing::debug_span!("server", otel.kind = "server");
    if !span.is_disabled() {
        let parent = TraceContextPropagator::new().extract(&Incoming(header(HEADER)));
        // It fails where spans are logged and not exported.
        let _ = span.set_parent(parent);
    }
    span
}

/// The span of what follows `span` and nobody waits for: in the same trace, below it, and it does not hold up its end.
pub fn behind(span: &Span, what: &'static str) -> Span {
    let behind = tracing::debug_span!(parent: None, "background", what);
    if !behind.is_disabled() {
        let _ = behind.set_parent(span.context());
    }
    behind
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

/// A count as spans have it. What `tracing` takes for an unsigned number would leave as text.
pub fn whole(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
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

struct Incoming<'a>(Option<&'a str>);

impl Extractor for Incoming<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.filter(|_| key.eq_ignore_ascii_case(HEADER))
    }

    fn keys(&self) -> Vec<&str> {
        vec![HEADER]
    }
}

struct Outgoing(Vec<(&'static str, String)>);

impl Injector for Outgoing {
    fn set(&mut self, key: &str, value: String) {
        if key.eq_ignore_ascii_case(HEADER) {
            self.0.push((HEADER, value));
        }
    }
}
