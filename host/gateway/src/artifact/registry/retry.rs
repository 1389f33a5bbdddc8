//! Asking again. Registries are busy, begin anew and cut connections off; what only asks may be sent a second time.

use super::header;
use std::time::Duration;
use tidegate_egress::{Connector, EgressError, Method, Request, Response};

/// Between two attempts, where the registry does not say how long.
const PAUSES: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];
/// Whoever waits is somebody at a terminal: at more, what the registry said is shown.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Sends a request; where it only asks, again as often as there are pauses, while the answer may be another one then.
pub(super) async fn send(connector: &Connector, request: &Request) -> Result<Response, EgressError> {
    let only_asks = [Method::GET, Method::HEAD].contains(&request.method);
    for pause in PAUSES.into_iter().filter(|_| only_asks) {
        let outcome = connector.send(request).await;
        let (pause, why) = match &outcome {
            Ok(answer) => match wait(answer, pause) {
                Some(pause) => (pause, answer.status.to_string()),
                None => return outcome,
            },
            Err(error) if may_pass(error) => (pause, error.to_string()),
            Err(_) => return outcome,
        };
        tracing::warn!("asking again in {pause:?}: {why}");
        tokio::time::sleep(pause).await;
    }
    connector.send(request).await
}

/// How long to wait before the same is asked again; `None` where that is of no use, or too long.
fn wait(answer: &Response, pause: Duration) -> Option<Duration> {
    if !matches!(answer.status.as_u16(), 429 | 502..=504) {
        return None;
    }
    let said = header(&answer.headers, "retry-after").trim().parse().map(Duration::from_secs);
    Some(said.unwrap_or(pause)).filter(|wait| *wait <= MAX_WAIT)
}

fn may_pass(error: &EgressError) -> bool {
    use EgressError::{Broken, Connect, ConnectTimeout, LookupTimeout};
    matches!(error, Broken { .. } | Connect { .. } | ConnectTimeout { .. } | LookupTimeout { .. })
}
