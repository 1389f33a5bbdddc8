//! Windows of a text of which its guard has failed one.

use super::{ON_ERROR, Paced, stage, streamed};
use crate::stages::counted;
use tidegate_tests::Gateway;

/// Nothing waits for it then, and it may have promised to say something at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_fails_on_all_of_a_text_is_told_of_its_end() {
    for (on_error, said) in ON_ERROR.into_iter().filter(|(_, said)| ["open", "skip"].contains(said)) {
        let name = format!("told-of-end-{said}");
        let more = format!("{on_error}config = {{ trap = \"unsafe\" }}");
        let guard = stage("watches", &name, "stream-guard", &more, "");
        let upstream = Paced::start(vec!["unsafe".into()]).await;
        let gateway = Gateway::start(&(upstream.model() + &guard)).await;
        assert_eq!(streamed(&gateway, &upstream.go).await.0, "unsafe", "{name}");
        let calls = format!("tidegate_plugin_call_seconds_count{{plugin=\"{name}\",stage=\"stream-guard\"}}");
        counted(&gateway, &calls, 2).await;
    }
}
