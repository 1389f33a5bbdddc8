//! A prompt guard that changes nothing and takes its time: a prompt of the words `tarry 300` is allowed after 300 ms,
//! `tarry 300 refuse` refused, `tarry 300 respond` answered and `tarry 300 panic` panicked at. Any other is allowed at once.

wit_bindgen::generate!({ path: "../../../wit", world: "prompt-guard-plugin" });

use exports::tidegate::plugin::{meta, prompt_guard};
use prompt_guard::Prompt;
use tidegate::plugin::clock::monotonic_ms;
use tidegate::plugin::types::{Action, Context, Error, Part, Refusal, Verdict};

struct Component;

impl meta::Guest for Component {
    fn describe() -> String {
        kit::descriptor("tarries", false)
    }

    fn configure(_: String) -> Result<(), Error> {
        Ok(())
    }
}

impl prompt_guard::Guest for Component {
    fn inspect_prompt(_: Context, prompt: Prompt) -> Result<Verdict, Error> {
        let last = prompt.messages.last().and_then(|message| message.parts.first());
        let Some(Part::Text(text)) = last else { return Ok(allow()) };
        let mut words = text.split(' ');
        let (Some("tarry"), Some(Ok(ms))) = (words.next(), words.next().map(str::parse::<u64>)) else {
            return Ok(allow());
        };
        let end = monotonic_ms() + ms;
        while monotonic_ms() < end {
            std::hint::spin_loop();
        }
        let action = match words.next() {
            Some("refuse") => Action::Refuse(Refusal {
                code: "asked".into(),
                public_message: "refused as the test asked".into(),
                private_reason: None,
            }),
            Some("panic") => panic!("as the test asked"),
            Some("respond") => Action::Respond(vec![Part::Text("from the guard".into())]),
            _ => Action::Allow,
        };
        Ok(Verdict { action, ..allow() })
    }
}

fn allow() -> Verdict {
    Verdict { action: Action::Allow, findings: Vec::new(), attrs: Vec::new() }
}

export!(Component);
