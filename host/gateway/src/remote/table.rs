//! Tables for people: columns as wide as what is in them.

use std::io::Write;

/// Writes rows below their heads. What a server sends is shown, never obeyed: control characters are escaped.
pub(super) fn write(out: &mut dyn Write, heads: &[&str], rows: &[Vec<String>]) -> std::io::Result<()> {
    let shown = |cell: &String| cell.chars().flat_map(shown).collect::<String>();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let width = |i: usize| {
        let column = rows.iter().chain([&heads]).filter_map(|row| row.get(i));
        column.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    for row in [&heads].into_iter().chain(&rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn shown(character: char) -> Vec<char> {
    if character.is_control() { character.escape_default().collect() } else { vec![character] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them_and_nothing_leaves_its_cell() {
        let mut out = Vec::new();
        let rows = [vec!["a".to_owned(), "long one".into()], vec!["b\n\u{1b}[2J".into(), String::new()]];
        write(&mut out, &["NAME", "X"], &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "NAME          X\na             long one\nb\\n\\u{1b}[2J\n");
    }
}
