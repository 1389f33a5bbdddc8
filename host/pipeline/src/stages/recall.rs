//! Retrievers add passages and memories what they know, screened and attributed, in front of the last question.

use crate::chat::{Pipeline, RetrieverStage};
use crate::stage::Size;
use crate::states::{Ended, Grounded, Request, Screened};
use futures_util::future::{try_join, try_join_all};
use std::sync::Arc;
use tidegate_sandbox::stage::{Chunk, Query, StageKind};
use tidegate_types::{Citation, Form, Message, Part, Provenance, Reject, Role, Scope};

/// Of a passage's source, as the model reads it.
const MAX_NAME_CHARS: usize = 200;

impl Pipeline {
    pub(crate) async fn recall(self: &Arc<Self>, screened: Screened) -> Result<Grounded, Ended> {
        let Screened(request) = screened;
        let scope = &request.cx.caller.scope;
        if self.retrievers(scope).next().is_none() && self.memories_of(scope).next().is_none() {
            return Ok(Grounded(request));
        }
        let Some((at, question)) = question(&request) else { return Ok(Grounded(request)) };
        // Of its own, so that requests that ask nobody do not carry the place for it.
        Box::pin(self.ground(request, at, question)).await
    }

    async fn ground(self: &Arc<Self>, request: Box<Request>, at: usize, question: String) -> Result<Grounded, Ended> {
        let scope = Arc::clone(&request.cx.caller.scope);
        let retrievers = self.retrievers(&scope).map(|retriever| &retriever.stage);
        let asked = retrievers.chain(self.memories_of(&scope).map(|memory| &memory.stage));
        let mut request = self.settled_before(request, asked).await?;
        self.reserve_retrieval(&request)?;
        let retrieved = self.retrievers(&scope).map(|retriever| self.retrieve(retriever, &request, &question));
        let remembered = self.memories_of(&scope).map(|memory| self.remembered(memory, &request, &question));
        let (retrieved, remembered) = try_join(try_join_all(retrieved), try_join_all(remembered)).await?;
        let (retrieved, citations): (Vec<Message>, Vec<Citation>) = retrieved.into_iter().flatten().unzip();
        let passages = retrieved.into_iter().chain(remembered.into_iter().flatten()).collect();
        let mut passages = self.screen_outside(&request.cx, passages, &mut request.findings).await?;
        // By their place, since two retrievers may give one id. What a guard dropped is not cited: the model never had it.
        let cited = citations.into_iter().zip(&mut passages);
        request.citations = cited.filter_map(|(citation, passage)| Some(named(citation, passage.as_mut()?))).collect();
        request.cx.note(|report| request.citations.iter().cloned().for_each(|citation| report.cited(citation)));
        Arc::make_mut(&mut request.chat).messages.splice(at..at, passages.into_iter().flatten());
        if self.memories_of(&scope).next().is_some() {
            request.question = Some(question);
        }
        Ok(Grounded(request))
    }

    /// Sets aside what looking for passages costs, for all retrievers: they are asked beside each other.
    fn reserve_retrieval(&self, request: &Request) -> Result<(), Reject> {
        let Some(charge) = &request.charge else { return Ok(()) };
        let calls = self.retrievers(&request.cx.caller.scope).map(|retriever| charge.retrieval(&retriever.stage.name));
        charge.reserve_calls(&request.chat.model, &calls.collect::<Vec<_>>())
    }

    /// Those whose passages are for the caller.
    fn retrievers<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = &'a RetrieverStage> {
        self.stages.retrievers.iter().filter(|retriever| scope.has(&retriever.stage.name))
    }

    async fn retrieve(
        &self,
        retriever: &RetrieverStage,
        request: &Request,
        question: &str,
    ) -> Result<Vec<(Message, Citation)>, Reject> {
        let stage = &retriever.stage;
        let call = request.cx.call(request.chat.stream, stage.wall);
        let query = Query { text: question.to_owned(), top_k: retriever.top_k };
        let found = stage
            .call_about(Size::Sent(question.len()), StageKind::Retriever, &call, async |plugin| {
                plugin.retrieve(&call, &query).await
            })
            .await?;
        request.note_lack(&found);
        if let (Some(charge), Some(_)) = (&request.charge, &found) {
            charge.called(charge.retrieval(&stage.name));
        }
        let good = |chunk: &Chunk| chunk.score.is_none_or(|score| score >= retriever.min_score);
        let chunks = found.unwrap_or_default().into_iter().filter(good);
        Ok(chunks.take(retriever.top_k as usize).map(|chunk| passage(&stage.name, chunk)).collect())
    }
}

/// What the model calls a passage's source by: one line, of a length that leaves the passage the most of it. A guard may have
/// written in it.
fn name_of(file: &str) -> String {
    one_line(file).chars().take(MAX_NAME_CHARS).collect()
}

fn one_line(told: &str) -> String {
    told.chars().filter(|c| !c.is_control()).collect()
}

/// The last message of the user, which must be the last of all: a conversation that waits for tool results was
/// grounded when the question came.
fn question(request: &Request) -> Option<(usize, String)> {
    let last = request.chat.messages.last()?;
    let asks = request.chat.form == Form::Chat && last.role == Role::User;
    let text = last.joined_text();
    (asks && !text.trim().is_empty()).then(|| (request.chat.messages.len() - 1, text))
}

/// A retriever's passage as guards see it, and as it is cited: its text, and behind that what is told of its document, the `uri`
/// (without one, the chunk's id) and the title. Whoever wrote that may have written names, too. Each is a line here already: a word
/// that is whole only without its control characters is one that guards see.
pub fn passage(plugin: &str, chunk: Chunk) -> (Message, Citation) {
    let citation = Citation {
        source: plugin.to_owned(),
        file: one_line(chunk.uri.as_deref().unwrap_or(&chunk.id)),
        title: chunk.title.as_deref().map(one_line),
        bytes: chunk.origin.map(|span| (span.start, span.end)),
    };
    let told = [Some(&citation.file), citation.title.as_ref()].into_iter().flatten().cloned();
    let message = Message {
        id: format!("{plugin}/{}", chunk.id),
        role: Role::User,
        name: None,
        parts: [chunk.text].into_iter().chain(told).map(Part::Text).collect(),
        provenance: Some(Provenance { source: plugin.to_owned(), uri: chunk.uri, span: chunk.origin }),
    };
    (message, citation)
}

/// The citation as the guards left it; and the passage as the model reads it: its text alone again, behind the file's name
/// where it is of a file.
fn named(mut citation: Citation, passage: &mut Message) -> Citation {
    let mut told =
        passage.parts.drain(1..).filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
    citation.file = told.next().unwrap_or_default();
    citation.title = told.next();
    drop(told);
    let is_file = passage.provenance.as_ref().is_some_and(|provenance| provenance.uri.is_some());
    let name = name_of(&citation.file);
    if is_file && !name.is_empty() {
        passage.parts.insert(0, Part::Text(format!("[{name}] ")));
    }
    citation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_reads_where_a_passage_is_from() {
        let read = |uri: Option<&str>| {
            let (uri, text) = (uri.map(str::to_owned), "Kelso is a port.".to_owned());
            let chunk = Chunk { id: "c0".into(), text, uri, title: Some("Ports".into()), score: None, origin: None };
            let (mut message, citation) = passage("folder", chunk);
            let cited = named(citation.clone(), &mut message);
            assert_eq!(cited, citation);
            message.joined_text()
        };
        assert_eq!(read(Some("docs/kelso.md")), "[docs/kelso.md] Kelso is a port.");
        assert_eq!(read(None), "Kelso is a port.", "an id is a name for programs");
        assert_eq!(read(Some("a\n\nb\u{7f}")), "[ab] Kelso is a port.", "a name is one line");
        assert_eq!(read(Some("\n")), "Kelso is a port.");
        let (uri, title) = (Some("jane@exa\nmple.com".to_owned()), Some("P\u{85}orts".to_owned()));
        let chunk = Chunk { id: "c0".into(), text: "Kelso.".into(), uri, title, score: None, origin: None };
        let seen = ["Kelso.", "jane@example.com", "Ports"].map(|text| Part::Text(text.to_owned()));
        assert_eq!(passage("folder", chunk).0.parts, seen, "guards see what the model reads");
        assert_eq!(read(Some(&"é".repeat(300))).chars().count(), "[] Kelso is a port.".chars().count() + 200);
    }
}
