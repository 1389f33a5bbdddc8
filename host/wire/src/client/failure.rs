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
        Self { message, code: text("code"), param: text("param"), status }
    }
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
