//! Where in a request something is: a list on the stack that becomes text only when an error names it,
//! so that a request without errors pays nothing for its paths.

/// One step from the body's root. Lives on the stack of the function that took the step.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

/// A key from the caller may be long; an error repeats this many characters of it.
const MAX_KEY_CHARS: usize = 64;

impl<'a> Path<'a> {
    pub(crate) const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    pub(crate) fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    pub(crate) fn index<'b>(&'b self, index: usize) -> Path<'b> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// As OpenAI writes it: `messages[2].content[0].text`.
    pub(crate) fn render(&self) -> String {
        let mut out = self.parent.map(Path::render).unwrap_or_default();
        match self.step {
            Step::Root => {}
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.extend(key.chars().take(MAX_KEY_CHARS));
            }
            Step::Index(index) => out.push_str(&format!("[{index}]")),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_openai_writes_it() {
        let messages = Path::ROOT.key("messages");
        let second = messages.index(2);
        let content = second.key("content");
        assert_eq!(content.index(0).key("text").render(), "messages[2].content[0].text");
        assert_eq!(Path::ROOT.render(), "");
    }
}
