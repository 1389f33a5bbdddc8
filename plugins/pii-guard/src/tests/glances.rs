//! What a glance lets go, the guard lets go without a word.

use super::*;
use tidegate_plugin_sdk::testing::assert_glances_tell;

#[test]
fn glances_have_answers_where_nothing_is_found_and_none_where_something_is() {
    let guard = plugin::<PiiGuard>("");
    assert_eq!(guard.glance("word24543 a@b, ", 0), Some(15));
    assert_eq!(guard.glance("Ask jo@example.c", 1), Some(4), "an address may begin there");
    assert_eq!(guard.glance("Ask jo@example.com today", 0), None);
    let text = "Ask word24543 a@b, or jo@example.com; 4111 1111 1111 1111 is a card.";
    let answers = assert_glances_tell(&guard, text);
    assert!(answers > 500, "{answers}");
}

proptest! {
    // Each has some thousand windows.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn glances_agree_with_what_the_guard_says(text in awkward()) {
        let text: String = text.chars().take(40).collect();
        for config in ["", r#"{"action":"flag"}"#, r#"{"action":"block","kinds":["card","phone"]}"#] {
            assert_glances_tell(&plugin::<PiiGuard>(config), &text);
        }
    }
}
