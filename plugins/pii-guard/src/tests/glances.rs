//! What a glance lets go, the guard lets go without a word.

use super::*;
use tidegate_plugin_sdk::testing::{assert_glances_tell, assert_prompt_glances_tell};

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

#[test]
fn glances_at_prompts_allow_those_in_which_nothing_is_found() {
    let guard = plugin::<PiiGuard>("");
    let said = |role: Role, text: &str| (role, text.to_owned());
    let address = "Ask jo@example.com today";
    assert!(guard.glance_prompt(&[said(Role::System, address), said(Role::User, "What is word24543 a@b?")]));
    for role in [Role::User, Role::Assistant, Role::Tool, Role::Other("critic".into())] {
        assert!(!guard.glance_prompt(&[said(Role::User, "Hello."), said(role, address)]));
    }
    let answers =
        assert_prompt_glances_tell(&guard, "Ask word24543 a@b, or jo@example.com; 4111 1111 1111 1111 is a card.");
    assert!(answers > 5_000, "{answers}");
}

proptest! {
    // Each has some thousand windows.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn glances_agree_with_what_the_guard_says(text in awkward()) {
        let text: String = text.chars().take(40).collect();
        for config in ["", r#"{"action":"flag"}"#, r#"{"action":"block","kinds":["card","phone"]}"#] {
            let guard = plugin::<PiiGuard>(config);
            assert_glances_tell(&guard, &text);
            assert_prompt_glances_tell(&guard, &text);
        }
    }
}
