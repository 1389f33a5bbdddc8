//! What ARCHITECTURE.md says that an invariant is kept by is there: a test that was renamed or moved keeps nothing in the eyes of
//! who looks for it.

use super::sources;
use anyhow::{Context, Result};
use std::path::Path;

const MAP: &str = "ARCHITECTURE.md";

/// Names in the table of invariants that nothing has.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join(MAP)).with_context(|| format!("cannot read {MAP}"))?;
    Ok(missing(&text, &sources::files(root)?))
}

fn missing(map: &str, files: &[(String, String)]) -> Vec<String> {
    let gone = |(number, name): &(&str, &str)| {
        let is_there = files.iter().any(|(path, text)| is_at(path, name) || text.contains(&format!("fn {name}(")));
        (!is_there)
            .then(|| format!("{MAP}: invariant {number} is kept by `{name}`, which no file or test is; name what is"))
    };
    kept_by(map).iter().filter_map(gone).collect()
}

/// Whether a name is a file's or a folder's, by the last parts of its path.
fn is_at(path: &str, name: &str) -> bool {
    format!("/{path}/").contains(&format!("/{name}/"))
}

/// The number of each invariant with what stands in its last column: names, and no commands.
fn kept_by(map: &str) -> Vec<(&str, &str)> {
    let rows = map.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let (number, by) = (cells.first()?, cells.last()?);
        number.parse::<u32>().is_ok().then_some((*number, *by))
    });
    rows.flat_map(|(number, by)| by.split('`').skip(1).step_by(2).map(move |name| (number, name)))
        .filter(|(_, name)| !name.contains(' '))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_an_invariant_is_a_test_a_file_or_a_folder() {
        let map = "| # | invariant | kept by |\n|---|---|---|\n\
            | 1 | `x` is so | `cargo xtask tidy`, `a_test`; `b_test` |\n\
            | 2 | a | b or c | `engine/tests/order.rs`, `tests/cuda`, `fair`, `engine/order.rs`, `test` |\n\
            | no | n | `nothing` |\n";
        let files = [
            ("host/engine/tests/order.rs".to_owned(), "fn a_test() {}\nfn not_b_test() {}".to_owned()),
            ("tests/tests/cuda/faults.rs".to_owned(), String::new()),
            ("host/fair/src/lib.rs".to_owned(), String::new()),
        ];
        let found = missing(map, &files);
        let named: Vec<&str> = found.iter().filter_map(|line| line.split('`').nth(1)).collect();
        assert_eq!(named, ["b_test", "engine/order.rs", "test"], "{found:?}");
    }
}
