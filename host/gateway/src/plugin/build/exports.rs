//! What a world exports, read off its text, for languages whose tools build a plugin that lacks some of it: what is missing
//! would end an instance without a word at each call.

use crate::plugin::new::contract;

/// The interfaces that a world exports by lines of its own.
pub(super) fn exported(world: &str) -> impl Iterator<Item = &str> {
    world.lines().filter_map(|line| interface(line.trim().strip_prefix("export ")?.strip_suffix(';')?))
}

/// The functions of an interface of the contract.
pub(super) fn functions(interface: &str) -> impl Iterator<Item = &'static str> {
    let head = format!("interface {interface} {{");
    let body = contract().find_map(|(_, text)| text.split_once(&head)?.1.split("\n}").next()).unwrap_or_default();
    body.lines().filter_map(|line| Some(line.trim().split_once(": func(")?.0))
}

/// All interfaces that a plugin of a world has, `meta` first.
pub(super) fn interfaces(world: &str) -> impl Iterator<Item = &str> {
    std::iter::once("meta").chain(exported(world))
}

/// All that may be a name there.
pub(super) fn words(source: &str) -> impl Iterator<Item = &str> {
    source.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$')
}

/// `stream-guard` of `stream-guard` and of `tidegate:plugin/stream-guard@0.1.0`; a function of the world's own is none.
fn interface(exported: &str) -> Option<&str> {
    let name = match exported.split_once('/') {
        Some((_, name)) => name.split('@').next()?,
        None => exported,
    };
    let name = name.trim();
    (!name.contains(':')).then_some(name)
}

/// A part of a name with a capital at its front.
pub(super) fn capital(part: &str) -> String {
    let (initial, rest) = part.split_at(part.chars().next().map_or(0, char::len_utf8));
    initial.to_uppercase() + rest
}
