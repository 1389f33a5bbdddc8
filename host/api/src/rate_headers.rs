//! What is left to a limited caller, in the headers that OpenAI's clients read.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use std::time::Duration;
use tidegate_types::{Allowance, Allowances, Exceeded};

/// `limit`, `remaining` and `reset` of one kind.
type Names = [HeaderName; 3];

const REQUESTS: Names = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: Names = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// OpenAI's clients look at it before they try again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Says what is left.
pub(crate) fn allowances(headers: &mut HeaderMap, allowances: &Allowances) {
    for (names, allowance) in [(REQUESTS, allowances.requests), (TOKENS, allowances.tokens)] {
        let Some(Allowance { limit, remaining, reset }) = allowance else { continue };
        let [limit_name, remaining_name, reset_name] = names;
        headers.insert(limit_name, HeaderValue::from(limit));
        headers.insert(remaining_name, HeaderValue::from(remaining));
        if let Ok(reset) = HeaderValue::from_str(&duration(reset)) {
            headers.insert(reset_name, reset);
        }
    }
}

/// Says when to come back, or that it is no use.
pub(crate) fn exceeded(headers: &mut HeaderMap, exceeded: &Exceeded) {
    match exceeded.retry_after {
        Some(time) => {
            let milliseconds = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(milliseconds));
        }
        None => is_final(headers),
    }
}

/// Says that it is no use to come back.
pub(crate) fn is_final(headers: &mut HeaderMap) {
    headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
}

/// As OpenAI writes times: `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`. Rounded up to a millisecond.
fn duration(time: Duration) -> String {
    let milliseconds = time.as_nanos().div_ceil(1_000_000);
    if (1..1000).contains(&milliseconds) {
        return format!("{milliseconds}ms");
    }
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    let mut seconds = format!("{}.{:03}", rest / 1000, rest % 1000);
    seconds.truncate(seconds.trim_end_matches('0').trim_end_matches('.').len());
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_writes_them() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ms"),
            (120_000_000, "120ms"),
            (999_000_001, "1s"),
            (1_000_000_000, "1s"),
            (8_640_000_000, "8.64s"),
            (10_000_000_000, "10s"),
            (59_999_900_000, "1m0s"),
            (360_000_000_000, "6m0s"),
            (61_050_000_000, "1m1.05s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), text);
        }
    }
}
