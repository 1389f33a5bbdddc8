//! A stream guard that lets all go at a glance, and puts `asked` in the place of what it is asked about. Words of the text have its glance
//! do otherwise: `unsure` has no answer, `panic` and `loop` end in none, `log` logs, `far` and `back` are out of the window, `half`
//! is all but the last byte, which may be within a character.

wit_bindgen::generate!({ path: "../../../wit", world: "stream-glance-plugin" });

use exports::tidegate::plugin::stream_glance;
use exports::tidegate::plugin::stream_guard::{Guest, Inspection, Redaction, Window, WindowAction};
use tidegate::plugin::log::{Level, write};
use tidegate::plugin::types::{Context, Error, Span};

struct Component;

kit::meta!(Component, "glances");

impl stream_glance::Guest for Component {
    fn glance(text: String, settled: u32) -> Option<u32> {
        let says = |word| text.contains(word);
        let all = text.len() as u32;
        assert!(!says("panic"), "as the test asked");
        while says("loop") {
            std::hint::spin_loop();
        }
        if says("log") {
            write(Level::Info, "at a glance", &[]);
        }
        match () {
            () if says("unsure") => None,
            () if says("far") => Some(all + 1),
            () if says("back") => settled.checked_sub(1),
            () if says("half") => Some(all - 1),
            () => Some(all),
        }
    }
}

impl Guest for Component {
    fn inspect_window(_: Context, carry: Vec<u8>, window: Window) -> Result<Inspection, Error> {
        let (start, end) = (window.settled, window.text.len() as u32);
        let redaction = Redaction { span: Span { start, end }, text: "asked".into() };
        let action = if start < end { WindowAction::Redact(vec![redaction]) } else { WindowAction::Pass };
        Ok(Inspection { action, safe_through: end, carry, findings: Vec::new(), attrs: Vec::new() })
    }
}

export!(Component);
