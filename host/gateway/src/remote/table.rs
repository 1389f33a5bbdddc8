//! Tables for people: columns as wide as what is in them.

use crate::terminal::shown;
use std::io::Write;

/// Writes rows below their heads. What a server sends is shown, never obeyed.
pub(super) fn write(out: &mut dyn Write, heads: &[&str], rows: &[Vec<String>]) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
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
