//! A guard that lets all go at a glance, and puts `asked` in the place of what it is asked about in a stream, and answers so to a prompt.
//! Words of the text have its glance do otherwise: `unsure` has no answer, `panic` and `loop` end in none, `log` logs, `far` and `back` are
//! out of the window, `half` is all but the last byte, which may be within a character. So has a role of a prompt: an assistant's
//! is unsure. A prompt that says `count` it counts and allows where it is asked, which its glance keeps to itself.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:glances;
        world glances {
            include tidegate:plugin/prompt-glance-plugin@0.1.0;
            include tidegate:plugin/stream-glance-plugin@0.1.0;
        }
    ",
    world: "guests:glances/glances",
    generate_all,
});

use exports::tidegate::plugin::stream_guard::{Inspection, Redaction, Window, WindowAction};
use exports::tidegate::plugin::{prompt_glance, prompt_guard, stream_glance, stream_guard};
use tidegate::plugin::log::{Level, write};
use tidegate::plugin::metrics::count;
use tidegate::plugin::types::{Action, Context, Error, Part, Role, Span, Verdict};

struct Component;

impl exports::tidegate::plugin::meta::Guest for Component {
    fn describe() -> String {
        kit::descriptor_with("glances", true, r#","metrics":[{"name":"seen","summary":"prompts that say so"}]"#)
    }
    fn configure(_: String) -> Result<(), Error> {
        Ok(())
    }
}

impl stream_glance::Guest for Component {
    fn glance(text: String, settled: u32) -> Option<u32> {
        let says = |word| text.contains(word);
        let all = text.len() as u32;
        misbehave(&text);
        match () {
            () if says("unsure") => None,
            () if says("far") => Some(all + 1),
            () if says("back") => settled.checked_sub(1),
            () if says("half") => Some(all - 1),
            () => Some(all),
        }
    }
}

impl prompt_glance::Guest for Component {
    fn glance_prompt(messages: Vec<(Role, String)>) -> bool {
        messages.iter().for_each(|(_, text)| misbehave(text));
        !messages.iter().any(|(role, text)| text.contains("unsure") || matches!(role, Role::Assistant))
    }
}

fn misbehave(text: &str) {
    assert!(!text.contains("panic"), "as the test asked");
    while text.contains("loop") {
        std::hint::spin_loop();
    }
    if text.contains("log") {
        write(Level::Info, "at a glance", &[]);
    }
}

impl prompt_guard::Guest for Component {
    fn inspect_prompt(_: Context, prompt: prompt_guard::Prompt) -> Result<Verdict, Error> {
        let mut action = Action::Respond(vec![Part::Text("asked".into())]);
        if matches!(&prompt.messages[..], [one] if matches!(&one.parts[..], [Part::Text(text)] if text == "count")) {
            count("seen", 1);
            action = Action::Allow;
        }
        Ok(Verdict { action, findings: Vec::new(), attrs: Vec::new() })
    }
}

impl stream_guard::Guest for Component {
    fn inspect_window(_: Context, carry: Vec<u8>, window: Window) -> Result<Inspection, Error> {
        let (start, end) = (window.settled, window.text.len() as u32);
        let redaction = Redaction { span: Span { start, end }, text: "asked".into() };
        let action = if start < end { WindowAction::Redact(vec![redaction]) } else { WindowAction::Pass };
        Ok(Inspection { action, safe_through: end, carry, findings: Vec::new(), attrs: Vec::new() })
    }
}

export!(Component);
