//! Images, sound and files in what a plugin makes. Some servers fetch what a part names: with an address of its own choice a
//! plugin would send out what it has seen, by their hands, or reach what only they reach. So what it makes has its bytes with
//! it; what it was given it may put again.

use serde_json::{Map, Value};
use tidegate_types::{Message, Part};

/// The kinds of parts, and what is known of what is in them.
const KINDS: [(&str, &[&str]); 5] = [
    ("image_url", &["url", "detail"]),
    ("video_url", &["url"]),
    ("audio_url", &["url"]),
    ("input_audio", &["data", "format"]),
    ("file", &["file_data", "filename"]),
];

/// Refuses a message with a part that some server would fetch, or nobody knows what it would do with. `was_given` says of a part, by
/// kind and body, whether the plugin was given such a one.
pub(crate) fn check(message: &Message, was_given: impl Fn(&str, &Value) -> bool) -> Result<(), String> {
    of_message(message).try_for_each(|(kind, body)| if was_given(kind, body) { Ok(()) } else { check_part(kind, body) })
}

/// The parts that are media, by kind and body.
pub(crate) fn of_message(message: &Message) -> impl Iterator<Item = (&str, &Value)> {
    message.parts.iter().filter_map(|part| match part {
        Part::Opaque { kind, body } => Some((kind.as_str(), body)),
        _ => None,
    })
}

fn check_part(kind: &str, body: &Value) -> Result<(), String> {
    let refuse =
        |why: String| Err(format!("a plugin cannot make such a part of kind `{}`: {why}", kind.escape_debug()));
    let Some((_, known)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        return refuse(format!("there are: {}", KINDS.map(|(name, _)| name).join(", ")));
    };
    let Some(fields) = fields(kind, body) else {
        return refuse(format!("its body is to be {{\"type\": \"{kind}\", \"{kind}\": {{..}}}}"));
    };
    for (name, value) in fields {
        let Some(text) = value.as_str().filter(|_| known.contains(&name.as_str())) else {
            return refuse(format!("strings are taken of {}, and `{}` is none", known.join(", "), name.escape_debug()));
        };
        if names_address(name, text) {
            return refuse(format!(
                "`{name}` names an address; put what is there in its place, as `data:..;base64,..`"
            ));
        }
    }
    Ok(())
}

/// Of a body that has its kind, what the kind is about, and nothing else.
fn fields<'a>(kind: &str, body: &'a Value) -> Option<&'a Map<String, Value>> {
    let body = body.as_object()?;
    let is_whole = body.len() == 2 && body.get("type")?.as_str() == Some(kind);
    body.get(kind).filter(|_| is_whole)?.as_object()
}

fn names_address(name: &str, text: &str) -> bool {
    let is_data = text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"));
    !is_data && (name == "url" || text.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_types::Role;

    fn with(kind: &str, body: Value) -> Message {
        let mut message = Message::text("m0", Role::User, "look");
        message.parts.push(Part::Opaque { kind: kind.into(), body });
        message
    }

    fn image(url: &str) -> Message {
        with("image_url", json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}}))
    }

    fn check(message: &Message, given: &[Message]) -> Result<(), String> {
        super::check(message, |kind, body| given.iter().flat_map(of_message).any(|part| part == (kind, body)))
    }

    #[test]
    fn what_a_plugin_makes_has_its_bytes_with_it() {
        check(&image("data:image/png;base64,AAAA"), &[]).unwrap();
        let audio = json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}});
        check(&with("input_audio", audio), &[]).unwrap();
        let file =
            json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}});
        check(&with("file", file), &[]).unwrap();
        check(&Message::text("m0", Role::User, "https://a.example"), &[]).unwrap();
    }

    #[test]
    fn what_a_server_would_fetch_is_refused_unless_it_was_given() {
        for url in ["https://a.example/?q=secret", "//a.example/x", "a.example/x", "file:///etc/passwd", ""] {
            let refused = check(&image(url), &[image("https://b.example/")]).unwrap_err();
            assert!(refused.contains("`url` names an address"), "{url}: {refused}");
            check(&image(url), &[image(url)]).unwrap();
        }
    }

    #[test]
    fn what_may_be_read_as_something_else_is_refused() {
        for (kind, body) in [
            ("image_url", json!({"type": "text", "image_url": {"url": "data:,"}})),
            ("image_url", json!({"type": "image_url", "image_url": "https://a.example"})),
            ("image_url", json!({"type": "image_url", "image_url": {"url": "data:,"}, "uuid": "x"})),
            ("image_url", json!({"type": "image_url", "image_url": {"url": {"url": "https://a.example"}}})),
            ("file", json!({"type": "file", "file": {"file_url": "https://a.example"}})),
            ("file", json!({"type": "file", "file": {"file_data": "https://a.example"}})),
            ("file", json!({"type": "file", "file": {"file_id": "f"}})),
            ("text", json!({"type": "text", "text": "hi"})),
            ("image_url", json!(null)),
        ] {
            assert!(check(&with(kind, body.clone()), &[]).is_err(), "{body}");
        }
    }
}
