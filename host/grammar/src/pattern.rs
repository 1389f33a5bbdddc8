//! Patterns as llguidance is given them.
//!
//! Within a JSON string it reads a class with all control characters as one with all escapes, so that `[^"]` would let `\"`
//! through, and a group of the name `stop` as one that is only looked at. No answer can have a NUL, which has no spelling
//! that is allowed there: classes without it mean the same, and are read as they are meant.

use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// The same pattern so written that it is held. One that is none stays as it is: llguidance says what is wrong with it.
pub(crate) fn pattern(given: &str) -> String {
    // Of `\d` and `\w` the ASCII ones are meant, as there.
    match regex_syntax::parse(&llguidance::regex_to_lark(given, "dw")) {
        Ok(parsed) if is_misread(&parsed) => plain(parsed).to_string(),
        _ => given.to_owned(),
    }
}

fn is_misread(pattern: &Hir) -> bool {
    match pattern.kind() {
        HirKind::Class(class) => has(class, '\0') && !(has(class, '"') && has(class, '\\')),
        HirKind::Literal(literal) => literal.0.contains(&0),
        HirKind::Capture(group) => group.name.as_deref() == Some("stop") || is_misread(&group.sub),
        HirKind::Repetition(repeated) => is_misread(&repeated.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(is_misread),
        HirKind::Empty | HirKind::Look(_) => false,
    }
}

fn has(class: &Class, c: char) -> bool {
    match class {
        Class::Unicode(class) => class.iter().any(|range| (range.start()..=range.end()).contains(&c)),
        Class::Bytes(class) => class.iter().any(|range| (range.start()..=range.end()).contains(&(c as u8))),
    }
}

/// Without NUL and without groups that are captured.
fn plain(pattern: Hir) -> Hir {
    match pattern.into_kind() {
        HirKind::Class(Class::Unicode(mut class)) => {
            class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\0')]));
            Hir::class(Class::Unicode(class))
        }
        HirKind::Class(Class::Bytes(mut class)) => {
            class.difference(&ClassBytes::new([ClassBytesRange::new(0, 0)]));
            Hir::class(Class::Bytes(class))
        }
        HirKind::Literal(literal) if literal.0.contains(&0) => Hir::fail(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Capture(group) => plain(*group.sub),
        HirKind::Repetition(mut repeated) => {
            *repeated.sub = plain(std::mem::replace(&mut *repeated.sub, Hir::empty()));
            Hir::repetition(repeated)
        }
        HirKind::Concat(parts) => Hir::concat(parts.into_iter().map(plain).collect()),
        HirKind::Alternation(parts) => Hir::alternation(parts.into_iter().map(plain).collect()),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Empty => Hir::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_be_misread_is_written_anew_and_means_the_same() {
        for kept in ["^[a-c]{2}-[0-9]$", ".*", r"^\S+$", r"[^a-z\n]", "(", r"^(?<year>\d{4})$", r"\p{L}+"] {
            assert_eq!(pattern(kept), kept);
        }
        for given in [r#"^[^"]*$"#, r"^[^\\/]+$", r#"a[^"d]|(b)\d"#, r"^(?<stop>a|b)+$", "\0?x", r#"^[^"\n]{2,}?c"#] {
            let anew = pattern(given);
            assert!(anew != given && !anew.contains('\0') && !anew.contains("stop"), "{anew:?}");
            assert_eq!(pattern(&anew), anew, "once");
            let (before, after) = (regex::Regex::new(given).unwrap(), regex::Regex::new(&anew).unwrap());
            for text in ["", "a", "ab", "b7", "x", "a/b", r"a\b", "a\"b", "a\nb", "aéc", "\"", "xé7c", "abab"] {
                assert_eq!(before.is_match(text), after.is_match(text), "{given} {anew:?} {text:?}");
            }
        }
    }
}
