//! One line in the log and one count in the metrics for each request, whatever becomes of it: answered, rejected,
//! or the client gone. Written when the record is dropped, so that no path can forget it.
//!
//! Nothing that a caller wrote is in it but the request id that it chose: no prompt, no key, no header.

use crate::socket::Running;
use hyper::{Method, StatusCode};
use metrics::{Counter, Histogram, counter, histogram};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_trace as trace;
use tidegate_types::{Caller, Fault, Reject, RequestId, Retention};
use tracing::Span;

/// What became of a request.
enum Outcome {
    /// Until something else is known: whoever asked did not wait.
    ClientGone,
    Answered,
    Rejected(Box<Reject>),
}

/// The record of one request.
pub(crate) struct Record {
    pub(crate) request_id: RequestId,
    method: &'static str,
    /// The pattern of the route; paths that callers make up would be labels without end.
    pub(crate) route: &'static str,
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) status: Option<StatusCode>,
    begun: Instant,
    first_event: Option<Duration>,
    events: u64,
    outcome: Outcome,
    /// What the request's part in a trace is told in.
    pub(crate) span: Span,
    _running: Running,
}

impl Record {
    pub(crate) fn new(request_id: RequestId, method: &Method, running: Running, span: Span) -> Self {
        Self {
            request_id,
            method: method_label(method),
            route: "none",
            caller: None,
            status: None,
            begun: Instant::now(),
            first_event: None,
            events: 0,
            outcome: Outcome::ClientGone,
            span,
            _running: running,
        }
    }

    pub(crate) fn note_event(&mut self) {
        self.events += 1;
        if self.first_event.is_none() {
            self.first_event = Some(self.begun.elapsed());
        }
    }

    pub(crate) fn answered(&mut self) {
        self.outcome = Outcome::Answered;
    }

    pub(crate) fn rejected(&mut self, reject: &Reject) {
        self.outcome = Outcome::Rejected(Box::new(reject.clone()));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let outcome = match &self.outcome {
            Outcome::ClientGone => "client-gone",
            Outcome::Answered => "answered",
            Outcome::Rejected(_) => "rejected",
        };
        let status = status_label(self.status);
        let seconds = self.begun.elapsed().as_secs_f64();
        count(self.route, status, outcome, seconds);
        self.log(outcome, status, seconds);
        if !self.span.is_disabled() {
            self.trace(outcome);
        }
    }
}

impl Record {
    /// Names of OpenTelemetry's conventions, where it has some.
    fn trace(&self, outcome: &'static str) {
        let span = &self.span;
        let named = if self.method == OTHER_METHOD { "HTTP" } else { self.method };
        trace::name(span, &format!("{named} {}", self.route));
        trace::note(span, "http.request.method", self.method);
        trace::note(span, "http.route", self.route);
        trace::note(span, "tidegate.request_id", self.request_id.as_str().to_owned());
        trace::note(span, "tidegate.outcome", outcome);
        if let Some(status) = self.status {
            trace::note(span, "http.response.status_code", i64::from(status.as_u16()));
        }
        if let Some(caller) = &self.caller {
            trace::note(span, "tidegate.tenant", caller.tenant.as_str().to_owned());
            trace::note(span, "tidegate.key", caller.key_name.to_string());
        }
        if let Outcome::Rejected(reject) = &self.outcome {
            let code = reject.code.as_deref().unwrap_or("error");
            match reject.fault {
                // As the conventions have it, a server has not failed where its client was wrong.
                Fault::Client => trace::note(span, "error.type", code.to_owned()),
                _ => trace::fail(span, code),
            }
        }
    }

    fn log(&self, outcome: &str, status: &str, seconds: f64) {
        let (id, method, route) = (self.request_id.as_str(), self.method, self.route);
        let (tenant, key) = match &self.caller {
            Some(caller) => (caller.tenant.as_str(), &*caller.key_name),
            None => ("none", "none"),
        };
        let (class, weight) = self.caller.as_ref().map(|caller| (caller.class.as_str(), caller.weight)).unzip();
        let (ms, first_ms) = (seconds * 1e3, self.first_event.map(|first| first.as_secs_f64() * 1e3));
        let events = self.events;
        let Outcome::Rejected(reject) = &self.outcome else {
            // What an accepted request cost is in the pipeline's own line.
            tracing::debug!(id, method, route, status, outcome, tenant, key, class, weight, ms, first_ms, events);
            return;
        };
        // The message may repeat what the caller wrote; kind, place and cause say enough.
        let (kind, code) = (reject.kind, reject.code.as_deref());
        // The place may have a name that the caller chose: of a field that is not there, or of metadata.
        let is_kept = self.caller.as_ref().is_some_and(|caller| caller.scope.retention == Retention::Kept);
        let param = reject.param.as_deref().filter(|_| is_kept);
        let cause = reject.cause.as_deref();
        if reject.fault == Fault::Client {
            tracing::info!(id, method, route, status, outcome, tenant, key, class, weight, ms, ?kind, param, code);
            return;
        }
        let fault = reject.fault;
        tracing::warn!(
            id,
            method,
            route,
            status,
            outcome,
            tenant,
            key,
            class,
            weight,
            ms,
            events,
            ?kind,
            ?fault,
            code,
            cause
        );
    }
}

/// Counts a request that ended so, and how long it took, in figures that each thread has looked up by name once: a look-up
/// builds labels, hashes them and takes the registry's lock. There are as many as routes, statuses and outcomes.
fn count(route: &'static str, status: &'static str, outcome: &'static str, seconds: f64) {
    type Known = HashMap<[&'static str; 3], (Counter, Histogram)>;
    thread_local!(static KNOWN: RefCell<Known> = RefCell::default());
    let make = || {
        let count =
            counter!("tidegate_http_requests_total", "route" => route, "status" => status, "outcome" => outcome);
        (count, histogram!("tidegate_http_request_duration_seconds", "route" => route))
    };
    let note = |(count, duration): &(Counter, Histogram)| {
        count.increment(1);
        duration.record(seconds);
    };
    let find = |known: &RefCell<Known>| note(known.borrow_mut().entry([route, status, outcome]).or_insert_with(make));
    // A thread that ends knows nothing any more.
    KNOWN.try_with(find).unwrap_or_else(|_| note(&make()));
}

/// Notes an answer to what never became a request: where nobody could read a head, there is no method, route or caller.
pub(crate) fn without_request(id: &RequestId, status: StatusCode, reject: &Reject) {
    let (id, status, outcome) = (id.as_str(), status_label(Some(status)), "rejected");
    counter!("tidegate_http_requests_total", "route" => "none", "status" => status, "outcome" => outcome).increment(1);
    let (kind, code) = (reject.kind, reject.code.as_deref());
    if reject.fault == Fault::Client {
        tracing::info!(id, status, outcome, ?kind, code);
    } else {
        tracing::warn!(id, status, outcome, ?kind, code);
    }
}

/// What OpenTelemetry's conventions call a method that nobody defined; a span of it is named by `HTTP`.
const OTHER_METHOD: &str = "_OTHER";

/// The methods of RFC 9110 and RFC 5789 by their names. Any other is what a stranger wrote.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "CONNECT" => "CONNECT",
        "OPTIONS" => "OPTIONS",
        "TRACE" => "TRACE",
        "PATCH" => "PATCH",
        _ => OTHER_METHOD,
    }
}

/// The statuses that are answered, as labels.
fn status_label(status: Option<StatusCode>) -> &'static str {
    match status.map(|status| status.as_u16()) {
        Some(200) => "200",
        Some(204) => "204",
        Some(303) => "303",
        Some(400) => "400",
        Some(401) => "401",
        Some(403) => "403",
        Some(404) => "404",
        Some(405) => "405",
        Some(408) => "408",
        Some(409) => "409",
        Some(413) => "413",
        Some(414) => "414",
        Some(415) => "415",
        Some(429) => "429",
        Some(431) => "431",
        Some(500) => "500",
        Some(502) => "502",
        Some(503) => "503",
        Some(504) => "504",
        Some(_) => "other",
        None => "none",
    }
}
