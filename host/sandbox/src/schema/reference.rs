//! `$ref`: which schema of the same document it means, and that following it comes to an end.

use super::node::{Node, NodeIdx, ROOT, Schema, Type};
use super::read::Reader;
use super::{Violation, wrong};
use serde_json::Value;

/// A `$ref` as it was read.
pub(super) struct Reference<'s> {
    pub(super) from: NodeIdx,
    pub(super) target: &'s str,
    /// What it is relative to.
    pub(super) base: &'s Value,
    pub(super) path: String,
}

pub(super) fn resolve(mut reader: Reader<'_>) -> Result<Schema, Violation> {
    let references = std::mem::take(&mut reader.references);
    for reference in &references {
        let target = target(&reader, reference).map_err(|why| wrong(&reference.path, why))?;
        reader.nodes[reference.from].in_place.reference = Some(target);
    }
    check_ends(&reader.nodes, &references)?;
    Ok(Schema { nodes: reader.nodes, patterns: reader.patterns.list })
}

fn target(reader: &Reader<'_>, reference: &Reference<'_>) -> Result<NodeIdx, String> {
    let target = reference.target;
    if let Some(named) = reader.names.get(target) {
        return Ok(*named);
    }
    let Some(pointer) = target.strip_prefix('#') else {
        return Err(format!(
            "`{target:.80}` is not in this schema, and no other is fetched: write `#/$defs/...`, or an `$id` of its own"
        ));
    };
    let pointer = decoded(pointer).ok_or_else(|| format!("`{target:.80}` is not well escaped"))?;
    let found = reference.base.pointer(&pointer).ok_or_else(|| format!("nothing is at `{target:.80}`"))?;
    let place = reader.places.get(&std::ptr::from_ref(found));
    place.copied().ok_or_else(|| format!("what is at `{target:.80}` is no schema"))
}

/// Without the percent escapes of a URI's fragment. Those of a JSON pointer, `~0` and `~1`, are left.
fn decoded(fragment: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(fragment.len()), fragment.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        bytes.push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

/// A schema that leads back to itself for the same value would be checked for ever.
fn check_ends(nodes: &[Node], references: &[Reference<'_>]) -> Result<(), Violation> {
    let order = in_place_order(nodes);
    if order.len() == nodes.len() {
        return Ok(());
    }
    let mut ends = vec![false; nodes.len()];
    order.iter().for_each(|at| ends[*at] = true);
    // Every loop has a `$ref`: nothing else leads anywhere but inwards.
    let path = references.iter().find(|reference| !ends[reference.from]).map_or("", |reference| &reference.path);
    Err(wrong(path, "it leads back to itself without going into a property or an item"))
}

/// Each schema after those that it applies to the same value; without those that lead back to themselves.
fn in_place_order(nodes: &[Node]) -> Vec<NodeIdx> {
    let mut users: Vec<Vec<NodeIdx>> = vec![Vec::new(); nodes.len()];
    let mut waits_for = vec![0_usize; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        for part in node.in_place.all() {
            users[part].push(at);
            waits_for[at] += 1;
        }
    }
    let mut order: Vec<NodeIdx> = (0..nodes.len()).filter(|at| waits_for[*at] == 0).collect();
    let mut next = 0;
    while let Some(done) = order.get(next).copied() {
        next += 1;
        for user in &users[done] {
            waits_for[*user] -= 1;
            if waits_for[*user] == 0 {
                order.push(*user);
            }
        }
    }
    order
}

/// Whether nothing but an object fits, as far as types say, also where they are behind `$ref` or in each of several.
pub(super) fn describes_object(schema: &Schema) -> bool {
    let mut describes = vec![false; schema.nodes.len()];
    for at in in_place_order(&schema.nodes) {
        let node = &schema.nodes[at];
        let each = |parts: &[NodeIdx]| !parts.is_empty() && parts.iter().all(|part| describes[*part]);
        let in_place = &node.in_place;
        describes[at] = node.types == [Type::Object]
            || in_place.reference.iter().chain(&in_place.all_of).any(|part| describes[*part])
            || each(&in_place.any_of)
            || each(&in_place.one_of);
    }
    describes[ROOT]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_escapes_are_bytes_of_utf_8() {
        assert_eq!(decoded("/$defs/a%20b%C3%A4~1").as_deref(), Some("/$defs/a bä~1"));
        assert_eq!(decoded(""), Some(String::new()));
        for broken in ["%", "%2", "%zz", "%ff", "/a%2"] {
            assert_eq!(decoded(broken), None, "{broken}");
        }
    }
}
