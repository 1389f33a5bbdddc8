//! Guards beside each other of which one ends the answer: what each of the others is asked about then.

use super::{read, says};
use crate::stages::metrics;
use crate::together::{drip, watches};
use tidegate_tests::{Gateway, joined};

/// One that keeps the last 600 bytes back, and may keep 512.
fn capped(name: &str, more: &str) -> String {
    watches(name, &format!("hold = \"600\"{more}")).replace("holdback_bytes = 100000", "holdback_bytes = 512")
}

fn halts_of(name: &str) -> String {
    format!("tidegate_plugin_verdicts_total{{plugin=\"{name}\",stage=\"stream-guard\",verdict=\"halt\"}}")
}

/// Both pass their caps at the same text, and both have let go what is before it.
#[tokio::test(flavor = "multi_thread")]
async fn guards_that_pass_their_caps_at_once_are_not_asked_again_about_what_they_let_go() {
    let model = says("content", vec![format!("and then {}", "x".repeat(600))]).await;
    let guards = capped("caps-first", "") + &capped("caps-second", ", seam = \"and then and then\"");
    let gateway = Gateway::start(&format!("{model}{guards}")).await;
    for stream in [true, false] {
        assert_eq!(read(&gateway, stream).await[0], "and then ", "stream: {stream}");
    }
    assert!(!metrics(&gateway).await.contains(&halts_of("caps-second")), "it has seen no text twice");
}

/// What it has let go leaves no more: the other's farewell stands where the text began.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_passes_its_cap_where_another_halts_is_asked_about_what_leaves() {
    let model = says("content", vec![format!("and then {}", "x".repeat(600))]).await;
    let guards = watches("halts-beside-cap", "halt = \"then\"") + &capped("caps-beside", ", seam = \"then [halted\"");
    let gateway = Gateway::start(&format!("{model}{guards}")).await;
    for stream in [true, false] {
        assert_eq!(read(&gateway, stream).await[0], "[halted in text]", "stream: {stream}");
    }
    assert!(!metrics(&gateway).await.contains(&halts_of("caps-beside")), "nothing has left before the farewell");
}

/// Where the first guard halts, the second has let go more than leaves, and begins anew. It has failed before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_begins_anew_at_a_halt_sees_nothing_from_before_what_left_it_unjudged() {
    let mut words: Vec<String> = (10..50).map(|n| format!("word{n} ")).collect();
    (words[15], words[30]) = ("trapped ".into(), "forbidden ".into());
    let whole = words.concat();
    let cut = whole.find("forbidden").unwrap() - 60;
    let since = &whole[whole.find("trapped ").unwrap() + "trapped ".len()..cut];
    for (name, seam, is_seen) in
        [("anew-unjudged", "trapped ".to_owned(), false), ("anew-judged", format!("{since}[halted"), true)]
    {
        let holds = watches(&format!("{name}-before"), "hold = \"60\", halt = \"forbidden\"");
        let fails = watches(name, &format!("trap = \"trapped\", seam = \"{seam}\""));
        let fails = fails.replace("config =", "on_error = \"open\"\nconfig =");
        let told = drip(&format!("{holds}{fails}"), &words, 60).await;
        assert_eq!(joined(&told, 0), format!("{}[halted in text]", &whole[..cut]), "{name}");
        let metrics = metrics(&Gateway::start("").await).await;
        assert_eq!(metrics.contains(&halts_of(name)), is_seen, "{name}");
    }
}
