//! What an upstream says when it fails: OpenAI's `{"error": {...}}`, FastAPI's `{"detail": ...}`, a bare
//! message, or no JSON at all.

use serde_json::Value;

/// Characters of an upstream's message that are kept.
const MAX_MESSAGE_CHARS: usize = 500;

/// A failure in an upstream's own words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failure {
    /// Its message, shortened; empty when it said nothing readable.
    pub message: String,
    /// OpenAI's `code`, where it is a word.
    pub code: Option<String>,
    /// The field it complains about.
    pub param: Option<String>,
    /// A status given inside the error, as vLLM does within streams.
    pub status: Option<u16>,
    /// Whether it says that what the request says is the reason.
    pub is_about_content: bool,
}

impl Failure {
    /// Reads the body of a failed request.
    pub fn parse(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(value) => Self::from_value(value.get("error").unwrap_or(&value)),
            Err(_) => Self { message: shorten(&String::from_utf8_lossy(body)), ..Self::default() },
        }
    }

    /// Reads the `error` member.
    pub(super) fn from_value(error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(shorten);
        let message = match error {
            Value::String(message) => shorten(message),
            _ => text("message")
                .or_else(|| error.get("detail").map(|detail| shorten(&plain(detail))))
                .unwrap_or_default(),
        };
        let status = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let is_about_content = is_about_content(error, &message);
        Self { message, code: text("code"), param: text("param"), status, is_about_content }
    }
}

/// What names of failures have in them that are about content, but for marks and case.
const OF_CONTENT: [&str; 3] = ["contentfilter", "contentpolicy", "moderation"];

/// By the name of the failure; of OpenRouter's, which has none, by what it quotes of the request, and of xAI's, whose name is that
/// of a key that may not do something, by its words.
fn is_about_content(error: &Value, message: &str) -> bool {
    let details = error.get("metadata");
    let names = [error.get("code"), error.get("type"), details.and_then(|details| details.get("error_type"))];
    let folded = |name: &str| name.replace(['_', '-', ' '], "").to_ascii_lowercase();
    let is_named = |name: &str| OF_CONTENT.iter().any(|part| folded(name).contains(part));
    names.into_iter().flatten().filter_map(Value::as_str).any(is_named)
        || details.is_some_and(|details| details.get("flagged_input").is_some())
        || message.contains("violates usage guidelines")
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Without control characters, which have no place in a log line or a message.
fn shorten(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_shapes_that_servers_use() {
        let check = |body: &str, message: &str| assert_eq!(Failure::parse(body.as_bytes()).message, message, "{body}");
        check(r#"{"error":{"message":"too long","type":"x","param":null,"code":null}}"#, "too long");
        check(r#"{"error":"busy"}"#, "busy");
        check(r#"{"object":"error","message":"flat","code":404}"#, "flat");
        check(r#"{"detail":"Not Found"}"#, "Not Found");
        check(r#"{"detail":[{"loc":["body"]}]}"#, r#"[{"loc":["body"]}]"#);
        check("<html>\nBad Gateway</html>", "<html> Bad Gateway</html>");
        check("", "");
    }

    #[test]
    fn tells_a_refusal_for_the_content_from_others() {
        for (body, expected) in [
            (r#"{"error":{"message":"m","code":"content_policy_violation"}}"#, true),
            (r#"{"error":{"message":"m","type":"ContentFilter","code":null}}"#, true),
            (r#"{"error":{"message":"m","type":"moderation-blocked"}}"#, true),
            (r#"{"error":{"message":"m","code":403,"metadata":{"reasons":["x"],"flagged_input":"y"}}}"#, true),
            (r#"{"error":{"message":"m","code":403,"metadata":{"error_type":"content_policy_violation"}}}"#, true),
            (r#"{"code":"permission-denied","error":"Content violates usage guidelines. Team: x"}"#, true),
            (r#"{"code":"permission-denied","error":"Access to the chat endpoint is denied"}"#, false),
            (r#"{"error":{"message":"content_filter","code":"forbidden","metadata":{"provider_name":"x"}}}"#, false),
            ("content_policy_violation", false),
            ("{}", false),
        ] {
            assert_eq!(Failure::parse(body.as_bytes()).is_about_content, expected, "{body}");
        }
    }

    #[test]
    fn keeps_words_and_numbers_apart_and_bounds_the_message() {
        let long = "x".repeat(5000);
        let body = format!(r#"{{"error":{{"message":"{long}","code":"rate_limit","param":"n"}}}}"#);
        let failure = Failure::parse(body.as_bytes());
        assert_eq!(
            (failure.message.len(), failure.code.as_deref(), failure.param.as_deref()),
            (500, Some("rate_limit"), Some("n"))
        );
        assert_eq!(Failure::parse(br#"{"error":{"message":"m","code":429}}"#).status, Some(429));
    }
}
