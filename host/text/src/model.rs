//! A model's text side, opened from its folder and shared by all requests.
//!
//! Read next: `files.rs` (what is read), `chat.rs` (conversation to ids), `detokenizer.rs` (ids to text).

use crate::added::ControlTokens;
use crate::blanks::{long_runs, shortened};
use crate::call_ids::CallIdForm;
use crate::chat::ChatRenderer;
use crate::detokenizer::{Detokenizer, Place, Specials};
use crate::dialect::{Dialect, ToolFormat};
use crate::encoder::{AddSpecial, Encoder};
use crate::error::TextError;
use crate::files::{self, ModelFiles};
use crate::measure::Measure;
use crate::pieces::{MAX_IDS, PieceTable, SUPPORTED_DECODERS};
use crate::veil::{Veil, is_stand_in};
use crate::within::Within;
use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::normalizers::NormalizerWrapper;

/// What counts in place of what a model's folder says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextOverrides {
    /// How the model writes tool calls, where its template shows it wrongly or not at all.
    pub tool_format: Option<ToolFormat>,
    /// A Jinja file, at most 16 MiB; for conversations with tools and without.
    pub chat_template: Option<PathBuf>,
}

/// Tokenizer, chat template and output dialect of one model. Immutable, so it is shared by `Arc`.
pub struct TextModel {
    encoder: Encoder,
    pieces: PieceTable,
    measure: Measure,
    renderer: Option<ChatRenderer>,
    dialect: Dialect,
    markup: HashSet<u32>,
    /// Of these, those of reasoning.
    reasoning_markup: HashSet<u32>,
    eos: Option<u32>,
    bos: Option<u32>,
}

impl TextModel {
    /// Reads a Hugging Face folder: `tokenizer.json`, and where there are any `tokenizer_config.json`,
    /// `chat_template.jinja`, `chat_template.json` and `special_tokens_map.json`.
    pub fn open(dir: &Path) -> Result<Self, TextError> {
        Self::open_with(dir, &TextOverrides::default())
    }

    /// The same with some of it overridden.
    pub fn open_with(dir: &Path, overrides: &TextOverrides) -> Result<Self, TextError> {
        let files = files::read(dir, overrides.chat_template.as_deref())?;
        refuse_huge_ids(&files)?;
        let pieces = PieceTable::build(&files.tokenizer).map_err(|what| TextError::Unsupported {
            path: files.tokenizer_path.clone(),
            what,
            supported: SUPPORTED_DECODERS,
        })?;
        refuse_stand_ins(&files)?;
        let controls = ControlTokens::of(&files.tokenizer, files.unknown.as_ref());
        let named_id = |name: &str| files.tokenizer.token_to_id(files.named_tokens.get(name)?.as_str()?);
        let (eos, bos) = (named_id("eos_token"), named_id("bos_token"));
        let sources = files.tool_template.iter().chain(&files.template);
        let template: String = sources.map(|source| source.text.as_str()).collect();
        let mut dialect = Dialect::detect(&template, |token| files.tokenizer.token_to_id(token).is_some());
        dialect.tools = overrides.tool_format.unwrap_or(dialect.tools);
        let renderer = match files.template.or(files.tool_template.clone()) {
            Some(default) => {
                Some(ChatRenderer::new(default, files.tool_template, files.named_tokens.clone(), &dialect)?)
            }
            None => None,
        };
        let path = files.tokenizer_path;
        let measure = Measure::of(&files.tokenizer, &pieces);
        let encoder = Encoder::new(files.tokenizer, controls)
            .map_err(|error| TextError::Malformed { path, cause: error.to_string() })?;
        let (markup, reasoning_markup) = Default::default();
        let plain = Dialect::plain();
        let model = Self { encoder, pieces, measure, renderer, dialect: plain, markup, reasoning_markup, eos, bos };
        Ok(model.with_dialect(dialect))
    }

    /// Whether messages can be put to it, and not only text.
    pub fn has_template(&self) -> bool {
        self.renderer.is_some()
    }

    /// The same model with another output dialect than its template shows.
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        let ids = |dialect: &Dialect| dialect.marks().filter_map(|mark| self.token_to_id(mark)).collect();
        (self.markup, self.reasoning_markup) = (ids(&dialect), ids(&dialect.without_tools()));
        self.dialect = dialect;
        self
    }

    /// How the model writes tool calls and reasoning.
    pub fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// How the ids of tool calls are to be that this model makes.
    pub fn call_id_form(&self) -> CallIdForm {
        self.renderer.as_ref().map_or(CallIdForm::Any, |renderer| renderer.call_id_form(&self.dialect))
    }

    /// One more than the highest token id. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.pieces.num_ids()
    }

    /// The id of a token by its text, such as `<|im_end|>`.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.encoder.tokenizer().token_to_id(token)
    }

    /// The token's text as the tokenizer writes it (`Ġhello`), for people to read.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.encoder.tokenizer().id_to_token(id)
    }

    /// The bytes that a token stands for; they need not be whole characters. None for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.bytes(id)
    }

    /// Whether a token is no text: one that steers the model, or that the tokenizer calls special.
    pub fn is_mark(&self, id: u32) -> bool {
        self.is_control(id) || self.pieces.is_special(id)
    }

    /// The end token that `tokenizer_config.json` names; `generation_config.json` may name more.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The beginning token that `tokenizer_config.json` names.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether a token steers the model instead of being text; callers cannot write these.
    pub fn is_control(&self, id: u32) -> bool {
        self.encoder.controls().contains(id)
    }

    /// Text to ids as the tokenizer does it: marks in the text become control tokens. For trusted text.
    pub fn encode(&self, text: &str, add: AddSpecial) -> Result<Vec<u32>, TextError> {
        self.encoder.encode(text, add)
    }

    /// A prompt that its caller rendered, which may be far too long. As [`Self::encode`] of a whole prompt, but what is put before
    /// every text is not put there again where the prompt begins with it.
    pub fn encode_rendered_within(&self, text: &str, within: &Within<'_>) -> Result<Vec<u32>, TextError> {
        let count = |piece: &str| Ok(self.encoder.encode(piece, AddSpecial::No)?.len());
        let text = self.fitting(text, self.encoder.tokenizer().get_normalizer(), within, count)?;
        Ok(self.encoder.begun_once(self.encoder.encode(&text, AddSpecial::Yes)?))
    }

    /// A caller's text to ids: marks in it stay plain text.
    pub fn encode_literal(&self, text: &str, add: AddSpecial) -> Result<Vec<u32>, TextError> {
        self.encoder.encode_literal(text, add)
    }

    /// As [`Self::encode_literal`], for a text that may be far too long.
    pub fn encode_literal_within(
        &self,
        text: &str,
        add: AddSpecial,
        within: &Within<'_>,
    ) -> Result<Vec<u32>, TextError> {
        within.check_gone()?;
        let mut veil = Veil::new(self.encoder.controls());
        let veiled = veil.text(text)?;
        Ok(self.encoder.surrounded(self.encode_veiled(&veiled, &mut veil, within)?, add))
    }

    /// The tokens of a rendered template.
    pub(crate) fn encode_veiled(
        &self,
        rendered: &str,
        veil: &mut Veil<'_>,
        within: &Within<'_>,
    ) -> Result<Vec<u32>, TextError> {
        let count = |piece: &str| Ok(self.encoder.encode_veiled(piece, veil)?.len());
        let text = self.fitting(rendered, self.encoder.normalizer_of_veiled(), within, count)?;
        self.encoder.encode_veiled(&text, veil)
    }

    /// A text that may fit, with less of the white space that marks swallow. Refuses what surely does not fit.
    fn fitting<'t>(
        &self,
        text: &'t str,
        normalizer: Option<&NormalizerWrapper>,
        within: &Within<'_>,
        mut count: impl FnMut(&str) -> Result<usize, TextError>,
    ) -> Result<Cow<'t, str>, TextError> {
        let runs = if self.measure.swallows { long_runs(text) } else { Vec::new() };
        if runs.is_empty() {
            return within.check(text, self.measure, count).map(|()| Cow::Borrowed(text));
        }
        let (short, places) = shortened(text, &runs);
        within.check(&short, self.measure, &mut count)?;
        let swallowed = self.encoder.swallowed(&short, &places, normalizer)?;
        let swallowed: Vec<_> = runs.into_iter().zip(swallowed).filter_map(|(run, is)| is.then_some(run)).collect();
        let (text, _) = shortened(text, &swallowed);
        within.check(&text, self.measure, count)?;
        Ok(Cow::Owned(text))
    }

    /// Ids to text at once; the same as a [`Detokenizer`] says over time.
    pub fn decode(self: &Arc<Self>, ids: &[u32], specials: Specials) -> String {
        let mut detokenizer = Detokenizer::new(Arc::clone(self), specials, Place::Start);
        let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// Whether this prompt ends inside reasoning, because the template opened it; the answer then goes on there.
    pub fn opens_reasoning(&self, prompt: &[u32]) -> bool {
        let Some(tags) = &self.dialect.reasoning else { return false };
        let last = &prompt[prompt.len().saturating_sub(tags.open.len() + 8)..];
        let bytes: Vec<u8> = last.iter().flat_map(|id| self.token_bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).trim_end().ends_with(&tags.open)
    }

    pub(crate) fn pieces(&self) -> &PieceTable {
        &self.pieces
    }

    pub(crate) fn measure(&self) -> Measure {
        self.measure
    }

    pub(crate) fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    pub(crate) fn renderer(&self) -> Result<&ChatRenderer, TextError> {
        self.renderer.as_ref().ok_or(TextError::NoTemplate)
    }

    pub(crate) fn is_hidden(&self, id: u32, specials: Specials) -> bool {
        match specials {
            Specials::Show => false,
            Specials::Hide => self.pieces.is_special(id),
            Specials::ShowMarkup => self.pieces.is_special(id) && !self.markup.contains(&id),
            Specials::ShowReasoning => self.pieces.is_special(id) && !self.reasoning_markup.contains(&id),
        }
    }
}

/// One wrong id would ask for as much memory as billions of tokens.
fn refuse_huge_ids(files: &ModelFiles) -> Result<(), TextError> {
    match files.tokenizer.get_vocab(true).into_iter().max_by_key(|(_, id)| *id).filter(|(_, id)| *id >= MAX_IDS) {
        None => Ok(()),
        Some((token, id)) => Err(TextError::Malformed {
            path: files.tokenizer_path.clone(),
            cause: format!("token {token:?} has the id {id}; ids are below {MAX_IDS}"),
        }),
    }
}

/// The veil's stand-ins must mean nothing to the tokenizer.
fn refuse_stand_ins(files: &ModelFiles) -> Result<(), TextError> {
    let added = files.tokenizer.get_added_vocabulary().get_vocab();
    match added.keys().find(|text| text.contains(is_stand_in)) {
        None => Ok(()),
        Some(text) => Err(TextError::Unsupported {
            path: files.tokenizer_path.clone(),
            what: format!("the added token {text:?}"),
            supported: "added tokens without private-use characters of plane 16",
        }),
    }
}
