//! A model's tokens as llguidance reads them: a trie over their bytes.
//!
//! Marks (control and other added tokens) are no text, whatever they are written with: they lie behind a byte that no UTF-8
//! has, so that a grammar has them only where it names them by id. Which token ends an answer is not told here: the job
//! says it, and [`crate::Guide`] allows it.

use crate::error::GrammarError;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, TokenParser};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// What an id of a model's vocabulary stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// These bytes of text, which need not be whole characters.
    Text(Vec<u8>),
    /// A mark of this name, which is no text.
    Mark(String),
    /// Nothing: models pad their vocabulary.
    Unused,
}

/// The trie holds no longer ones. Such a token is never allowed; shorter ones write the same.
const MAX_TOKEN_BYTES: usize = 1000;

/// What a grammar and each of its steps may take. By llguidance's own figures (14,000 units of fuel and 20,000 items in a
/// millisecond) a mask is some twenty milliseconds at most. An object of 400 names that may be left out has 60,000 items where
/// any of them may come, of 150,000 tokens. The states of an answer are some ten megabytes at most.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 200_000,
        max_lexer_states: 20_000,
        // Symbols have 16 bits.
        max_grammar_size: 65_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// The tokens of one model, ready for grammars.
pub(crate) struct Vocabulary {
    factory: ParserFactory,
}

impl Vocabulary {
    /// `tokens` by id; ids behind them are never allowed.
    pub(crate) fn new(tokens: Vec<Token>) -> Result<Self, GrammarError> {
        // The trie panics on what it cannot hold.
        let built = std::panic::catch_unwind(AssertUnwindSafe(|| factory(&words(tokens))));
        let built = built.unwrap_or_else(|_| Err("its tokens are too many or too long".to_owned()));
        built.map(|factory| Self { factory }).map_err(GrammarError::Vocabulary)
    }

    /// A parser at the beginning of a grammar. Errors are in the words of llguidance.
    pub(crate) fn parser(&self, source: &str) -> Result<TokenParser, String> {
        let grammar = llguidance::api::TopLevelGrammar::from_lark(source.to_owned());
        let mut parser = self.factory.create_parser(grammar).map_err(|error| format!("{error:#}"))?;
        parser.start_without_prompt();
        // What is too much for a mask shows at once most often, and not while the answer is generated.
        match Matcher::new(Ok(parser.deep_clone())).compute_mask() {
            Ok(_) => Ok(parser),
            Err(panic) if panic.to_string().starts_with("panic") => Err(panic.to_string()),
            Err(error) => Err(format!("too complex: {error}")),
        }
    }
}

fn factory(words: &[Vec<u8>]) -> Result<ParserFactory, String> {
    let size = u32::try_from(words.len()).map_err(|_| "it has over 2^32 tokens".to_owned())?;
    let trie = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), words);
    // Not canonical: no token is forced, so any way of writing the same text is as good.
    let env = Arc::new(ApproximateTokEnv::new(trie));
    let env: llguidance::toktrie::TokEnv = env;
    let slices = SlicedBiasComputer::json_slices();
    let mut factory =
        ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|error| error.to_string())?;
    *factory.limits_mut() = limits();
    factory.quiet();
    Ok(factory)
}

fn words(tokens: Vec<Token>) -> Vec<Vec<u8>> {
    let word = |token| match token {
        Token::Text(bytes)
            if bytes.len() <= MAX_TOKEN_BYTES && bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) =>
        {
            bytes
        }
        Token::Mark(name) if name.len() < MAX_TOKEN_BYTES => {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
        }
        Token::Text(_) | Token::Mark(_) | Token::Unused => Vec::new(),
    };
    tokens.into_iter().map(word).collect()
}
