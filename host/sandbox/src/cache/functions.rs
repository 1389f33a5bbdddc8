//! Compiled functions on disk, for components that carry an interpreter: what their author changes is data, and some functions
//! of thousands. The rest of a new build is put together of what the one before it was compiled to.
//!
//! A file holds the functions of the last component that was compiled of a family: those whose largest module has the same code. It is
//! kept and checked as compiled components are (`cache.rs`), and is named by that code and the compiler. What a function was
//! compiled from and for is in its key, which is Cranelift's. A function that chooses among many places has another with each
//! compilation, and is compiled again: nine in ten of an interpreter's have not.

use parking_lot::{Mutex, RwLock};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use wasmparser::{Parser, Payload};
use wasmtime::CacheStore;

type Key = [u8; 32];

/// Names the components whose largest module has the same code; `None` of one that has no code, or that nobody can read.
pub(super) fn family(component: &[u8]) -> Option<blake3::Hash> {
    let mut largest: &[u8] = &[];
    for payload in Parser::new(0).parse_all(component) {
        if let Payload::CodeSectionStart { range, .. } = payload.ok()? {
            let code = component.get(range)?;
            if code.len() > largest.len() {
                largest = code;
            }
        }
    }
    (!largest.is_empty()).then(|| blake3::hash(largest))
}

/// What the compiler asks for functions, and tells of those that it has compiled.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Of one compilation at a time.
    now: RwLock<Option<Known>>,
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    before: HashMap<Key, Function>,
    new: Mutex<HashMap<Key, Vec<u8>>>,
}

#[derive(Debug)]
struct Function {
    code: Vec<u8>,
    is_used: AtomicBool,
}

/// What a file is to hold, where that is something else than before.
#[derive(Debug, PartialEq)]
pub(super) struct Written {
    pub(super) content: Vec<u8>,
    /// Functions that were compiled for it.
    pub(super) compiled: usize,
    /// Those that had been.
    pub(super) known: usize,
}

impl Functions {
    /// Compiles, with the functions of a file's content.
    pub(super) fn with<T>(&self, content: Option<Vec<u8>>, compile: impl FnOnce() -> T) -> (T, Option<Written>) {
        let _turn = self.turn.lock();
        let before = content.as_deref().map(read).unwrap_or_default();
        *self.now.write() = Some(Known { before, ..Known::default() });
        let compiled = compile();
        let known = self.now.write().take();
        (compiled, known.and_then(Known::written))
    }
}

impl Known {
    /// Those that the compiler asked for or made; `None` where it made none.
    fn written(self) -> Option<Written> {
        let new = self.new.into_inner();
        let compiled = new.len();
        if compiled == 0 {
            return None;
        }
        let used = self.before.into_iter().filter(|(_, function)| function.is_used.load(Ordering::Relaxed));
        let used: Vec<(Key, Vec<u8>)> = used.map(|(key, function)| (key, function.code)).collect();
        let (mut content, known) = (Vec::new(), used.len());
        for (key, code) in used.into_iter().chain(new) {
            content.extend_from_slice(&key);
            content.extend_from_slice(&(code.len() as u64).to_le_bytes());
            content.extend_from_slice(&code);
        }
        Some(Written { content, compiled, known })
    }
}

/// The functions of a file, up to where it is none.
fn read(mut content: &[u8]) -> HashMap<Key, Function> {
    let mut known = HashMap::new();
    while let Some((key, rest)) = content.split_first_chunk::<32>()
        && let Some((length, rest)) = rest.split_first_chunk::<8>()
        && let Some((code, rest)) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)
    {
        known.insert(*key, Function { code: code.to_vec(), is_used: AtomicBool::new(false) });
        content = rest;
    }
    known
}

impl CacheStore for Functions {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let now = self.now.read();
        let function = now.as_ref()?.before.get(key)?;
        function.is_used.store(true, Ordering::Relaxed);
        Some(Cow::Owned(function.code.clone()))
    }

    fn insert(&self, key: &[u8], code: Vec<u8>) -> bool {
        match (&*self.now.read(), key.try_into()) {
            (Some(known), Ok(key)) => {
                known.new.lock().insert(key, code);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;
    use wasmtime::component::Component;
    use wasmtime::{Config, Engine};

    fn compile(functions: &Functions, keys: &[u8]) -> usize {
        let compiled = keys.iter().filter(|key| functions.get(&[**key; 32]).is_none());
        compiled.filter(|key| functions.insert(&[**key; 32], vec![**key; **key as usize])).count()
    }

    fn content(written: Option<Written>) -> Vec<u8> {
        written.unwrap().content
    }

    #[test]
    fn a_file_has_what_the_last_compilation_asked_for_or_made() {
        let functions = Functions::default();
        let (made, first) = functions.with(None, || compile(&functions, &[1, 2, 0]));
        let first = content(first);
        assert_eq!((made, functions.with(Some(first.clone()), || compile(&functions, &[2, 1]))), (3, (0, None)));
        let (made, second) = functions.with(Some(first), || compile(&functions, &[2, 3]));
        let second = second.unwrap();
        assert_eq!((made, second.compiled, second.known), (1, 1, 1));
        let known = read(&second.content).into_iter().map(|(key, function)| (key, function.code));
        let mut known: Vec<(Key, Vec<u8>)> = known.collect();
        known.sort();
        assert_eq!(known, [([2; 32], vec![2; 2]), ([3; 32], vec![3; 3])]);
    }

    #[test]
    fn nothing_is_known_or_kept_but_where_it_was_asked_for() {
        let functions = Functions::default();
        let (_, kept) = functions.with(None, || compile(&functions, &[1]));
        assert_eq!(compile(&functions, &[1]), 0, "nothing takes it");
        let (known, _) = functions.with(Some(content(kept)), || functions.get(&[1; 32]).is_some());
        assert!(known && functions.get(&[1; 32]).is_none() && !functions.insert(&[1], vec![]));
    }

    #[test]
    fn a_file_is_read_up_to_where_it_is_none() {
        let functions = Functions::default();
        let content = content(functions.with(None, || compile(&functions, &[7])).1);
        for cut in 0..content.len() {
            assert_eq!(read(&content[..cut]).len(), 0, "{cut}");
            assert_eq!(read(&[&content[..], &content[..cut]].concat()).len(), 1, "{cut}");
        }
    }

    /// Of an interpreter, in a section that no compiler reads.
    #[test]
    fn a_build_that_differs_in_data_is_put_together_of_the_one_before() {
        let frozen = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/frozen/0.1.0/json-guard-javascript.wasm");
        let first = std::fs::read(frozen).unwrap();
        let second = [&first[..], &[0, 2, 1, b'x']].concat();
        assert!(family(&first).is_some_and(|of| Some(of) == family(&second)));
        let functions = Arc::<Functions>::default();
        let mut settings = Config::new();
        settings.enable_incremental_compilation(functions.clone()).unwrap();
        let engine = Engine::new(&settings).unwrap();
        let compile =
            |build: &[u8], known| functions.with(known, || Component::new(&engine, build).map(drop)).1.unwrap();
        let made = compile(&first, None);
        assert!(made.compiled > 1000 && made.known == 0, "{} and {}", made.compiled, made.known);
        let again = compile(&second, Some(made.content));
        assert!(again.known > 5 * again.compiled, "{} and {}", again.compiled, again.known);
    }

    #[test]
    fn a_family_is_told_by_the_code_of_the_largest_module() {
        let section = |id: u8, content: &[u8]| [&[id, content.len() as u8], content].concat();
        let module = |code: &[u8], data: &[u8]| {
            let body = section(10, &[&[1, code.len() as u8], code].concat());
            let module = [b"\0asm\x01\0\0\0", &section(1, &[1, 0x60, 0, 0])[..], &section(3, &[1, 0]), &body];
            section(1, &[&module.concat()[..], &section(0, data)].concat())
        };
        let component = |modules: &[Vec<u8>]| family(&[&b"\0asm\x0d\0\x01\0"[..], &modules.concat()].concat());
        let (small, large) = ([0, 0x0b], [0, 0x01, 0x01, 0x0b]);
        let of_large = component(&[module(&large, &[1, b'a']), module(&small, &[1, b'a'])]);
        assert!(of_large.is_some());
        assert_eq!(of_large, component(&[module(&small, &[1, b'b']), module(&large, &[1, b'c'])]));
        assert_ne!(of_large, component(&[module(&small, &[1, b'a'])]));
        assert_eq!(component(&[]), None);
        assert_eq!(family(b"\0asm"), None);
    }
}
