//! Compiling, within bounds, and what was compiled.
//!
//! It may take tens of milliseconds, so callers do it where it holds up nobody: in a turn of long work, or on a thread
//! beside the engine's loop.

use crate::cache::{Cache, Digest};
use crate::error::GrammarError;
use crate::guide::Guide;
use crate::vocabulary::{Token, Vocabulary};
use llguidance::{Matcher, TokenParser};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_types::TenantId;

/// Longest source of a grammar. Schemas are bounded by themselves, too.
pub const MAX_SOURCE_BYTES: usize = 512 << 10;
/// Grammars that are kept compiled, of all tenants together.
const MAX_KEPT: usize = 64;
/// llguidance follows a schema by recursion. Schemas are bounded so that a fourth of this is enough; what is not touched
/// costs nothing.
const STACK_BYTES: usize = 256 << 20;

/// A compiled grammar at its beginning. Cheap to clone.
#[derive(Clone)]
pub struct Compiled(Arc<Mutex<TokenParser>>);

impl Compiled {
    /// Follows one answer from its beginning. What it finds out on the way is its own: no other answer pays for it.
    pub fn guide(&self) -> Guide {
        Guide::new(self.clone())
    }

    pub(crate) fn matcher(&self) -> Matcher {
        Matcher::new(Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()))
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

/// Gives the tokens of a model, by id.
type Tokens = Box<dyn Fn() -> Result<Vec<Token>, String> + Send + Sync>;

/// The grammars of one model.
pub struct Grammars {
    tokens: Tokens,
    /// Made once: whoever needs it meanwhile waits for that. What went wrong is tried again.
    vocabulary: Mutex<Option<Arc<Vocabulary>>>,
    cache: Mutex<Cache<Compiled>>,
}

impl Grammars {
    /// Of a model with these tokens, which are asked for when the first grammar is.
    pub fn new(tokens: impl Fn() -> Result<Vec<Token>, String> + Send + Sync + 'static) -> Self {
        let cache = Mutex::new(Cache::new(MAX_KEPT));
        Self { tokens: Box::new(tokens), vocabulary: Mutex::default(), cache }
    }

    /// One that this tenant has compiled and that is still here.
    pub fn kept(&self, tenant: &TenantId, source: &str) -> Option<Compiled> {
        self.cache().get(tenant, &digest(source))
    }

    /// Compiles, or finds what was compiled before.
    pub fn compile(&self, tenant: &TenantId, source: &str) -> Result<Compiled, GrammarError> {
        if let Some(kept) = self.kept(tenant, source) {
            return Ok(kept);
        }
        if source.len() > MAX_SOURCE_BYTES {
            let message =
                format!("it has {} bytes with all that belongs to it; {MAX_SOURCE_BYTES} are allowed", source.len());
            return Err(GrammarError::Schema(message));
        }
        let compiled = self.on_a_deep_stack(|vocabulary| vocabulary.parser(source))?;
        let compiled = Compiled(Arc::new(Mutex::new(compiled)));
        self.cache().put(tenant, digest(source), compiled.clone());
        Ok(compiled)
    }

    fn on_a_deep_stack(
        &self,
        compile: impl FnOnce(&Vocabulary) -> Result<TokenParser, String> + Send,
    ) -> Result<TokenParser, GrammarError> {
        let run = || compile(&*self.vocabulary()?).map_err(|error| GrammarError::Schema(in_our_words(&error)));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("tidegate-grammar".into()).stack_size(STACK_BYTES);
            match thread.spawn_scoped(scope, run) {
                Ok(running) => running.join().unwrap_or_else(|_| Err(GrammarError::Schema(UNKNOWN.to_owned()))),
                Err(error) => Err(GrammarError::Vocabulary(format!("no thread to compile it on: {error}"))),
            }
        })
    }

    fn vocabulary(&self) -> Result<Arc<Vocabulary>, GrammarError> {
        let mut kept = self.vocabulary.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vocabulary) = &*kept {
            return Ok(vocabulary.clone());
        }
        let tokens = (self.tokens)().map_err(GrammarError::Vocabulary)?;
        let vocabulary = Arc::new(Vocabulary::new(tokens)?);
        *kept = Some(vocabulary.clone());
        Ok(vocabulary)
    }

    fn cache(&self) -> MutexGuard<'_, Cache<Compiled>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammars")
    }
}

const UNKNOWN: &str = "no answer can be held to it";

/// Longest part of an error that is told on.
const MAX_ERROR_CHARS: usize = 300;

/// What callers read: without places in a grammar that they have not seen, and switches that they do not have.
fn in_our_words(error: &str) -> String {
    if error.starts_with("panic") {
        tracing::error!(place = place_of(error), "llguidance panicked");
        return UNKNOWN.to_owned();
    }
    if error.contains("oneOf constraints are not supported") {
        return "the alternatives of its `oneOf` may overlap, which cannot be held; write `anyOf`".to_owned();
    }
    let said = error.rsplit_once("failed to compile JSON schema: ").map_or(error, |(_, said)| said);
    let said: String = without_excerpt(said).chars().take(MAX_ERROR_CHARS).collect();
    if said.contains("limits.") || said.contains("too large") || said.contains("too complex") || said.contains("fuel") {
        return format!("it is more than is compiled ({said})");
    }
    said
}

/// Without the lines that point into a pattern: one says what is wrong there.
fn without_excerpt(said: &str) -> String {
    let first = said.lines().next().unwrap_or(UNKNOWN);
    match said.lines().find_map(|line| line.trim().strip_prefix("error: ")) {
        Some(wrong) => format!("{first} {wrong}"),
        None => first.to_owned(),
    }
}

/// Where a panic happened. What it said may be what a caller wrote, which is in no log.
fn place_of(panic: &str) -> &str {
    panic.split_once("<backtrace>").map_or("unknown", |(_, place)| place)
}

fn digest(source: &str) -> Digest {
    *blake3::hash(source.as_bytes()).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_is_wrong_in_a_pattern_is_said() {
        let error = "failed to compile JSON schema: regex parse error:\n    (?=a)b\n    ^^^\nerror: look-ahead is not supported\n^";
        assert_eq!(in_our_words(error), "regex parse error: look-ahead is not supported");
        assert_eq!(in_our_words("failed to compile JSON schema: anyOf is empty\n  at #"), "anyOf is empty");
        assert_eq!(in_our_words(""), UNKNOWN);
    }

    #[test]
    fn of_a_panic_the_place_is_kept_and_not_what_it_said() {
        let panic = "panic: byte index 100 is not a char boundary; it is inside 'é' of `my secret`\n<backtrace>\n 0: f\n</backtrace>";
        assert_eq!(place_of(panic), "\n 0: f\n</backtrace>");
        assert_eq!(place_of("panic: my secret"), "unknown");
    }

    #[test]
    fn tokens_that_could_not_be_read_once_are_read_again() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let grammars = Grammars::new(move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err("the file is busy".to_owned()),
            _ => Ok((b'a'..=b'z').map(|byte| Token::Text(vec![byte])).collect()),
        });
        let compile = |source| grammars.compile(&TenantId::new("t"), source).map(drop);
        assert!(matches!(compile("start: /a/"), Err(GrammarError::Vocabulary(_))));
        assert_eq!((compile("start: /a/"), compile("start: /b/")), (Ok(()), Ok(())));
        assert_eq!(asked.load(Ordering::Relaxed), 2, "what is there is kept");
    }
}
