//! Compiled functions on disk: what the author of a plugin changes from build to build is some functions of it, and of an interpreter, which is
//! thousands, next to none. A new build is put together of what the one before it was compiled to, and of what is new.
//!
//! A family is the components whose largest module imports and exports the same. Its file holds what its last compilation asked for or
//! made. It is kept and checked as compiled components are (`cache.rs`), and named by the family and the compiler. What a
//! function was compiled from is in its key, which is Cranelift's. Invariant: no code is given but under the key that it was
//! made for.

use parking_lot::{Mutex, RwLock};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use wasmparser::{Encoding, Parser, Payload};
use wasmtime::CacheStore;

const KEY: usize = 32;
/// Of the bytes of a function's code, which follow.
const LENGTH: usize = size_of::<u64>();

type Key = [u8; KEY];

/// Names the components whose largest module imports and exports the same; `None` of one that has no code, or that nobody can read.
pub(super) fn family(component: &[u8]) -> Option<blake3::Hash> {
    let (mut largest, mut named) = (0, None);
    let mut module = blake3::Hasher::new();
    for payload in Parser::new(0).parse_all(component) {
        match payload.ok()? {
            Payload::Version { encoding: Encoding::Module, .. } => module = blake3::Hasher::new(),
            Payload::ImportSection(section) => {
                module.update(component.get(section.range())?);
            }
            Payload::ExportSection(section) => {
                module.update(component.get(section.range())?);
            }
            Payload::CodeSectionStart { size, .. } if size > largest => {
                // Imports and exports come before the code.
                (largest, named) = (size, Some(module.finalize()));
            }
            _ => {}
        }
    }
    named
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

/// Of what functions a component was put together.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Parts {
    /// What the file is to hold, where one was compiled.
    pub(super) content: Option<Vec<u8>>,
    pub(super) compiled: usize,
    /// Those that had been.
    pub(super) known: usize,
}

/// A compilation, which no other is beside.
struct Turn<'f>(&'f Functions);

impl Functions {
    /// Compiles, with the functions of a file's content.
    pub(super) fn with<T>(&self, content: Option<Vec<u8>>, compile: impl FnOnce() -> T) -> (T, Parts) {
        let _lock = self.turn.lock();
        let turn = Turn::begin(self, content);
        let compiled = compile();
        (compiled, turn.end())
    }
}

impl<'f> Turn<'f> {
    fn begin(functions: &'f Functions, content: Option<Vec<u8>>) -> Self {
        let before = content.map(|content| read(&content)).unwrap_or_default();
        *functions.now.write() = Some(Known { before, new: Mutex::default() });
        Self(functions)
    }

    fn end(self) -> Parts {
        self.0.now.write().take().map(Known::parts).unwrap_or_default()
    }
}

/// Nothing is left where the compiler panicked.
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.now.write() = None;
    }
}

impl Known {
    fn parts(self) -> Parts {
        let new = self.new.into_inner();
        let is_used =
            |(key, function): &(Key, Function)| function.is_used.load(Ordering::Relaxed) && !new.contains_key(key);
        let used: Vec<(Key, Function)> = self.before.into_iter().filter(is_used).collect();
        let (compiled, known) = (new.len(), used.len());
        let used = used.into_iter().map(|(key, function)| (key, function.code));
        let content = (compiled > 0).then(|| written(used.chain(new).collect()));
        Parts { content, compiled, known }
    }
}

/// What [`read`] reads.
fn written(functions: Vec<(Key, Vec<u8>)>) -> Vec<u8> {
    let length = functions.iter().map(|(_, code)| KEY + LENGTH + code.len()).sum();
    let mut content = Vec::with_capacity(length);
    for (key, code) in functions {
        content.extend_from_slice(&key);
        content.extend_from_slice(&(code.len() as u64).to_le_bytes());
        content.extend_from_slice(&code);
    }
    content
}

/// The functions of a file, up to where it is none.
fn read(mut content: &[u8]) -> HashMap<Key, Function> {
    let mut known = HashMap::new();
    while let Some((key, rest)) = content.split_first_chunk::<KEY>()
        && let Some((length, rest)) = rest.split_first_chunk::<LENGTH>()
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

    fn compile(functions: &Functions, keys: &[u8]) -> usize {
        let compiled = keys.iter().filter(|key| functions.get(&[**key; 32]).is_none());
        compiled.filter(|key| functions.insert(&[**key; 32], vec![**key; **key as usize])).count()
    }

    #[test]
    fn a_file_has_what_the_last_compilation_asked_for_or_made() {
        let functions = Functions::default();
        let (made, first) = functions.with(None, || compile(&functions, &[1, 2, 0]));
        assert_eq!((made, first.compiled, first.known), (3, 3, 0));
        let (made, same) = functions.with(first.content.clone(), || compile(&functions, &[2, 1]));
        assert_eq!((made, same), (0, Parts { content: None, compiled: 0, known: 2 }));
        let (made, second) = functions.with(first.content, || compile(&functions, &[2, 3]));
        assert_eq!((made, second.compiled, second.known), (1, 1, 1));
        let known = read(&second.content.unwrap()).into_iter().map(|(key, function)| (key, function.code));
        let mut known: Vec<(Key, Vec<u8>)> = known.collect();
        known.sort();
        assert_eq!(known, [([2; 32], vec![2; 2]), ([3; 32], vec![3; 3])]);
    }

    /// As where the compiler cannot read what it is given.
    #[test]
    fn what_was_known_and_is_compiled_again_is_kept_once() {
        let functions = Functions::default();
        let first = functions.with(None, || compile(&functions, &[1])).1;
        let again = functions.with(first.content, || {
            assert!(functions.get(&[1; 32]).is_some());
            functions.insert(&[1; 32], b"again".into())
        });
        assert_eq!((again.1.compiled, again.1.known), (1, 0));
        assert_eq!(read(&again.1.content.unwrap())[&[1; 32]].code, b"again");
    }

    #[test]
    fn nothing_is_known_or_taken_but_while_something_is_compiled() {
        let functions = Functions::default();
        assert_eq!(compile(&functions, &[1]), 0);
        let first = functions.with(None, || compile(&functions, &[1])).1;
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            functions.with(first.content, || panic!("{}", functions.get(&[1; 32]).is_some()));
        }));
        assert_eq!(panics.unwrap_err().downcast_ref::<String>().unwrap(), "true");
        assert!(functions.get(&[1; 32]).is_none());
        let other = functions.with(None, || functions.insert(&[1], vec![]));
        assert!(!other.0, "it is no key");
    }

    #[test]
    fn a_file_is_read_up_to_where_it_is_none() {
        let functions = Functions::default();
        let content = functions.with(None, || compile(&functions, &[7])).1.content.unwrap();
        for cut in 0..content.len() {
            assert_eq!(read(&content[..cut]).len(), 0, "{cut}");
            assert_eq!(read(&[&content[..], &content[..cut]].concat()).len(), 1, "{cut}");
        }
    }

    #[test]
    fn a_family_is_told_by_what_the_largest_module_imports_and_exports() {
        let section = |id: u8, content: &[u8]| [&[id, content.len() as u8], content].concat();
        let module = |export: u8, code: &[u8]| {
            let body = [&[1, code.len() as u8], code].concat();
            let parts = [
                section(1, &[1, 0x60, 0, 0]),
                section(3, &[1, 0]),
                section(7, &[1, 1, export, 0, 0]),
                section(10, &body),
            ];
            section(1, &[&b"\0asm\x01\0\0\0"[..], &parts.concat()].concat())
        };
        let component = |modules: &[Vec<u8>]| family(&[&b"\0asm\x0d\0\x01\0"[..], &modules.concat()].concat());
        let (small, large, larger) = ([0, 0x0b], [0, 0x01, 0x01, 0x0b], [0, 0x01, 0x01, 0x01, 0x0b]);
        let of_a = component(&[module(b'a', &large), module(b'b', &small)]);
        assert!(of_a.is_some());
        assert_eq!(of_a, component(&[module(b'c', &small), module(b'a', &larger)]));
        assert_ne!(of_a, component(&[module(b'b', &large), module(b'a', &small)]));
        assert_eq!(component(&[]), None);
        assert_eq!(family(b"\0asm"), None);
    }
}
