//! How a `Reject` looks on the wire: status, OpenAI's `type`, and a stable `code`.

use crate::write::{optional_string, raw, string};
use bytes::{Bytes, BytesMut};
use tidegate_types::{Counted, Reject, RejectKind};

/// Status, `type`, and the `code` where the reject brings none.
fn shape(kind: RejectKind) -> (u16, &'static str, &'static str) {
    match kind {
        RejectKind::Invalid => (400, "invalid_request_error", "invalid_request"),
        RejectKind::Unauthenticated => (401, "invalid_request_error", "invalid_api_key"),
        RejectKind::Forbidden => (403, "permission_error", "forbidden"),
        RejectKind::NotFound => (404, "invalid_request_error", "not_found"),
        RejectKind::MethodNotAllowed => (405, "invalid_request_error", "method_not_allowed"),
        RejectKind::RequestTimeout => (408, "invalid_request_error", "request_timeout"),
        RejectKind::Conflict => (409, "invalid_request_error", "conflict"),
        RejectKind::TooLarge => (413, "invalid_request_error", "request_too_large"),
        RejectKind::UnsupportedMedia => (415, "invalid_request_error", "unsupported_media_type"),
        RejectKind::ContentFilter => (400, "invalid_request_error", "content_filter"),
        RejectKind::RateLimited => (429, "rate_limit_error", "rate_limit_exceeded"),
        RejectKind::Internal => (500, "server_error", "internal_error"),
        RejectKind::BadUpstream => (502, "upstream_error", "bad_upstream"),
        RejectKind::Unavailable => (503, "server_error", "unavailable"),
        RejectKind::UpstreamTimeout => (504, "upstream_error", "upstream_timeout"),
    }
}

/// OpenAI says in `type` what there was too much of.
fn limit_type(counted: Counted) -> &'static str {
    match counted {
        Counted::Requests | Counted::Concurrency => "requests",
        Counted::Tokens => "tokens",
    }
}

/// The HTTP status of a failed request.
pub fn status(kind: RejectKind) -> u16 {
    shape(kind).0
}

/// `{"error": {message, type, param, code}}`. The cause stays out: it is for the log.
pub fn error_body(reject: &Reject) -> Bytes {
    let (_, kind, code) = shape(reject.kind);
    let kind = reject.limited.as_ref().and_then(|limited| limited.exceeded).map_or(kind, |e| limit_type(e.counted));
    let mut out = BytesMut::with_capacity(reject.message.len() + 128);
    raw(&mut out, r#"{"error":{"message":"#);
    string(&mut out, &reject.message);
    raw(&mut out, r#","type":""#);
    raw(&mut out, kind);
    raw(&mut out, r#"","param":"#);
    optional_string(&mut out, reject.param.as_deref());
    raw(&mut out, r#","code":"#);
    string(&mut out, reject.code.as_deref().unwrap_or(code));
    raw(&mut out, "}}");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tidegate_types::Fault;

    #[test]
    fn has_openais_shape_and_keeps_the_cause_back() {
        let reject = Reject::invalid("messages[0].role", "say \"who\"").because("secret");
        let body: Value = serde_json::from_slice(&error_body(&reject)).unwrap();
        let expected = json!({"error": {"message": "say \"who\"", "type": "invalid_request_error",
            "param": "messages[0].role", "code": "invalid_request"}});
        assert_eq!(body, expected);
    }

    #[test]
    fn a_stable_word_of_the_reject_wins() {
        let reject = Reject::new(RejectKind::NotFound, Fault::Client, "no").code("model_not_found");
        let body: Value = serde_json::from_slice(&error_body(&reject)).unwrap();
        assert_eq!(body["error"]["code"], "model_not_found");
        assert_eq!(body["error"]["param"], Value::Null);
        assert_eq!(status(reject.kind), 404);
    }
}
