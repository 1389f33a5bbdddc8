//! The contract inside a released line: every record, variant and signature of `wit/`, and all that a world names, is noted,
//! one a line, in `tests/frozen/VERSION/contract.txt`. What is noted never changes; what is new is noted, but for a new
//! function of an interface that components export, which would refuse every component of the line.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// Changes of what was released, and additions that are not noted.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let Some(version) = super::files::current_contract(root)? else { return Ok(Vec::new()) };
    let shown = format!("tests/frozen/{version}/contract.txt");
    let noted = std::fs::read_to_string(root.join(&shown)).with_context(|| format!("cannot read {shown}"))?;
    let mut text = String::new();
    for path in
        super::files::entries(&root.join("wit"))?.iter().filter(|path| path.extension().is_some_and(|e| e == "wit"))
    {
        text.push_str(&std::fs::read_to_string(path)?);
        text.push('\n');
    }
    Ok(compare(&noted, &text).into_iter().map(|what| format!("{shown}: {what}")).collect())
}

fn compare(noted: &str, wit: &str) -> Vec<String> {
    let noted: BTreeSet<&str> = noted.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let items = items(wit);
    let current: BTreeSet<&str> = items.iter().map(String::as_str).collect();
    let exported = exported(wit);
    let mut found = Vec::new();
    for gone in noted.difference(&current) {
        found.push(format!("`{gone}` was released and is not in wit/ any more; restore it, and make a new interface"));
    }
    for new in current.difference(&noted) {
        let interface = new.split(':').next().unwrap_or_default();
        let released = noted.iter().any(|line| line.split(':').next() == Some(interface));
        if released && exported.contains(interface) {
            found.push(format!("`{new}` is new in an interface that released components export; make a new interface"));
        } else {
            found.push(format!("`{new}` is new; note it as a line of this file once it is right for ever"));
        }
    }
    found
}

/// Every type and function as `interface: item`, and then what worlds name as `world name: item`, without comments and in one
/// way of spacing.
fn items(wit: &str) -> Vec<String> {
    let plain = plain(wit);
    let mut items = items_of(&plain, "interface ", "");
    items.extend(items_of(&plain, "world ", "world "));
    items
}

fn items_of(plain: &str, keyword: &str, shown: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut rest = plain;
    while let Some(at) = rest.find(keyword) {
        rest = &rest[at + keyword.len()..];
        let Some((name, body)) = rest.split_once('{') else { break };
        let length = block(body);
        for item in split(&body[..length]) {
            items.extend(uses(&item).into_iter().map(|item| format!("{shown}{}: {item}", name.trim())));
        }
        rest = &body[length..];
    }
    items
}

/// Interfaces that some world exports.
fn exported(wit: &str) -> BTreeSet<String> {
    let plain = plain(wit);
    let exports = plain.split("export ").skip(1).filter_map(|rest| rest.split(';').next());
    exports.map(|name| name.trim().to_owned()).collect()
}

/// Without comments, every run of white space one space.
fn plain(wit: &str) -> String {
    let code = wit.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// Where the block ends that `body` is inside of.
fn block(body: &str) -> usize {
    let mut depth = 1;
    let end = body.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '{') - i32::from(*c == '}');
        depth == 0
    });
    end.map_or(body.len(), |(at, _)| at)
}

/// The items of an interface's body: each ends with a semicolon, or with the brace that closes its own.
fn split(body: &str) -> Vec<String> {
    let (mut items, mut item, mut depth) = (Vec::new(), String::new(), 0);
    for c in body.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c != ';' {
            item.push(c);
        }
        let is_use = item.trim_start().starts_with("use ");
        if depth == 0 && (c == ';' || c == '}' && !is_use) {
            let done = item.trim().replace(", }", " }").replace(",)", ")");
            if !done.is_empty() {
                items.push(done);
            }
            item.clear();
        }
    }
    items
}

/// A `use` of several names as one item for each: their order says nothing.
fn uses(item: &str) -> Vec<String> {
    let Some((from, names)) = item.strip_prefix("use ").and_then(|used| used.split_once(".{")) else {
        return vec![item.to_owned()];
    };
    names.trim_end_matches('}').split(',').map(|name| format!("use {from}.{}", name.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIT: &str = "package a:b@0.1.0;\n/// Doc; with { braces }\ninterface guard {\n  use types.{error, span};\n  \
                       record window {\n    text: string, // note\n    settled: u32,\n  }\n  \
                       look: func(w: window) -> result<_, error>;\n}\ninterface kv { get: func() -> u32; }\n\
                       world w { import kv; export guard; }\n";

    fn noted() -> String {
        items(WIT).join("\n")
    }

    #[test]
    fn each_type_and_function_is_a_line() {
        let expected = [
            "guard: use types.error",
            "guard: use types.span",
            "guard: record window { text: string, settled: u32 }",
            "guard: look: func(w: window) -> result<_, error>",
            "kv: get: func() -> u32",
            "world w: import kv",
            "world w: export guard",
        ];
        assert_eq!(items(WIT), expected);
        assert!(compare(&noted(), WIT).is_empty());
    }

    #[test]
    fn comments_and_spacing_change_nothing() {
        let other = WIT.replace("/// Doc", "/// Other words").replace("  text", "\n\n      text");
        assert!(compare(&noted(), &other).is_empty());
    }

    #[test]
    fn what_was_released_never_changes() {
        for (from, to) in [
            ("settled: u32", "settled: u64"),
            ("settled: u32,", "settled: u32, more: u32,"),
            ("text: string, // note\n    settled: u32,", "settled: u32, text: string,"),
            ("result<_, error>;\n}", "result<u32, error>;\n}"),
            ("get: func() -> u32;", ""),
            ("import kv;", ""),
            ("export guard;", "include other;"),
        ] {
            let found = compare(&noted(), &WIT.replace(from, to));
            assert!(found.iter().any(|line| line.contains("was released")), "{from} -> {to}: {found:?}");
        }
    }

    #[test]
    fn an_exported_interface_gains_nothing_and_an_imported_one_is_noted() {
        let found = compare(&noted(), &WIT.replace("look:", "glance: func();\n look:"));
        assert!(found.len() == 1 && found[0].contains("released components export"), "{found:?}");
        let found = compare(&noted(), &WIT.replace("get:", "set: func();\n get:"));
        assert!(found.len() == 1 && found[0].contains("note it as a line"), "{found:?}");
    }
}
