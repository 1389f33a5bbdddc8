//! E-mail addresses: a local part of at most 128 bytes, `@`, a domain of at most 255 bytes with at least one dot
//! and a last label of letters (RFC 5321's limits, the local part doubled for letters outside ASCII). An apostrophe between two
//! characters of a name belongs to it, as in `o'brien`; others are quotes.

use super::visible::is_accent;
use tidegate_plugin_sdk::scan::{Place, Step};

const MAX_LOCAL_BYTES: usize = 128;
const MAX_DOMAIN_BYTES: usize = 255;
const MAX_LABEL_BYTES: usize = 63;

pub(super) fn step(at: Place<'_>, rule: usize) -> Step {
    if at.before.is_some_and(is_name) || !at.rest.starts_with(is_name) {
        return Step::No;
    }
    let local = run(at.rest, MAX_LOCAL_BYTES + 1, LOCAL);
    if local > MAX_LOCAL_BYTES {
        return Step::No;
    }
    match at.rest[local..].chars().next() {
        None => return if at.is_last { Step::No } else { Step::More },
        Some('@') if !has_quote(&at.rest[..local]) => {}
        Some(_) => return Step::No,
    }
    let behind = &at.rest[local + 1..];
    let domain = run(behind, MAX_DOMAIN_BYTES + 1, DOMAIN);
    if domain == behind.len() && domain <= MAX_DOMAIN_BYTES && !at.is_last {
        return Step::More;
    }
    match domain_len(&behind[..domain]) {
        // An address of SSH, which is nobody's: `git@github.com:org/repo`.
        Some(len) if &at.rest[..local] == "git" && behind[len..].starts_with([':', '/']) => Step::No,
        // It begins behind the quote.
        Some(len) if is_literal(&at.rest[..local]) && behind[len..].starts_with('\'') => Step::No,
        Some(len) => Step::Match { len: local + 1 + len, rule },
        None => Step::No,
    }
}

/// Endings of files and of systemd's units that no domain has: `icon@2x.png`, `getty@tty1.service`.
const NO_DOMAINS: [&str; 20] = [
    "css", "dll", "exe", "gif", "html", "jar", "jpeg", "jpg", "json", "pdf", "png", "service", "socket", "svg",
    "timer", "toml", "txt", "webp", "yaml", "yml",
];

/// Letters of the scripts that names are written in without spaces between words being rare: Latin, Greek,
/// Cyrillic, Armenian. In Chinese text an address stands right beside other characters. Some accents that stand apart count as letters
/// in Unicode; here they are not seen.
pub(super) fn is_name(c: char) -> bool {
    let is_other = ('\u{c0}'..'\u{590}').contains(&c) && !is_accent(c);
    c.is_ascii_alphanumeric() || c == '_' || (is_other && c.is_alphabetic())
}

/// Whether one of the apostrophes in a local part is none of a name.
fn has_quote(local: &str) -> bool {
    let mut pieces = local.split('\'');
    let mut before = pieces.next().unwrap_or_default();
    pieces.any(|piece| !std::mem::replace(&mut before, piece).ends_with(is_name) || !piece.starts_with(is_name))
}

/// Whether it begins as a text of a program does, in Python's notation: `b'jo`.
fn is_literal(local: &str) -> bool {
    local.split_once('\'').is_some_and(|(prefix, _)| matches!(prefix, "b" | "f" | "r" | "u" | "br" | "rb"))
}

/// Of ASCII, what belongs to a name, a local part, a domain, a word with apostrophes: a bit each.
type Part = u8;
pub(super) const NAME: Part = 1;
const LOCAL: Part = 1 << 1;
const DOMAIN: Part = 1 << 2;
pub(super) const WORD: Part = 1 << 3;

const PARTS: [Part; 128] = {
    let mut parts = [0; 128];
    let mut byte = 0;
    while byte < 128 {
        parts[byte] = match byte as u8 {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => NAME | LOCAL | DOMAIN | WORD,
            b'_' => NAME | LOCAL | WORD,
            b'\'' => LOCAL | WORD,
            b'.' | b'-' => LOCAL | DOMAIN,
            b'+' | b'%' => LOCAL,
            _ => 0,
        };
        byte += 1;
    }
    parts
};

/// Bytes at the start of `text` that are of `part`, at most about `max`. One loop for all who ask: what they run through is code that
/// the processor has mostly to wait for.
#[inline(never)]
pub(super) fn run(text: &str, max: usize, part: Part) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at).filter(|_| at < max) {
        at += match PARTS.get(usize::from(*byte)) {
            Some(parts) if parts & part != 0 => 1,
            Some(_) => break,
            None => match text[at..].chars().next().filter(|c| is_name(*c)) {
                Some(c) => c.len_utf8(),
                None => break,
            },
        };
    }
    at
}

/// The longest beginning of `run` that is a domain: the dot of a sentence's end is none of it, nor is what somebody
/// wrote behind an address (`jane@example.com-2`).
fn domain_len(run: &str) -> Option<usize> {
    if !run.as_bytes().contains(&b'.') {
        return None;
    }
    let (mut longest, mut start) = (None, 0);
    let ends = run.char_indices().filter(|(_, c)| matches!(c, '.' | '-')).map(|(at, c)| (at, c == '.'));
    for (end, is_dot) in ends.chain([(run.len(), true)]) {
        let label = &run[start..end];
        if start > 0 && end <= MAX_DOMAIN_BYTES && is_label(label) && is_top(label) {
            longest = Some(end);
        }
        if is_dot {
            if !is_label(label) {
                break;
            }
            start = end + 1;
        }
    }
    longest
}

fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL_BYTES).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
}

/// Letters, at least two, and no file's ending; `xn--` stands for letters outside of ASCII.
fn is_top(label: &str) -> bool {
    if NO_DOMAINS.iter().any(|known| label.eq_ignore_ascii_case(known)) {
        return false;
    }
    label.starts_with("xn--") || (label.chars().all(char::is_alphabetic) && label.chars().nth(1).is_some())
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::found;

    #[test]
    fn addresses_are_found_where_they_stand() {
        let check = |text, expected: &[&str]| assert_eq!(found(Kind::Email, text), expected, "{text}");
        check("write to jane.doe+news@mail.example.co.uk.", &["jane.doe+news@mail.example.co.uk"]);
        check("<a@b.io>, \"c_d@e-f.org\"; mailto:x%y@z.museum?subject=hi", &["a@b.io", "c_d@e-f.org", "x%y@z.museum"]);
        check("-jane@example.com", &["jane@example.com"]);
        check("jürgen@müller.de и иван@почта.рф", &["jürgen@müller.de", "иван@почта.рф"]);
        check("请联系john@example.com谢谢", &["john@example.com"]);
        check("a@b.com...", &["a@b.com"]);
        check("john@example.com.2 and john@example.com-1", &["john@example.com", "john@example.com"]);
        check("a@b.com-x.org-", &["a@b.com-x.org"]);
        check("jane@example.com.json, mails/jo@example.com-x.pdf", &["jane@example.com", "jo@example.com"]);
        check("git@example.com is an address, too", &["git@example.com"]);
        check("as in sean.o'brien@example.ie, d'été@example.fr", &["sean.o'brien@example.ie", "d'été@example.fr"]);
        check(
            "'ap@x.example', ('b@x.example'); it's o'c@x.example's",
            &["ap@x.example", "b@x.example", "o'c@x.example"],
        );
        check("a'+'b@x.example a''c@x.example a'.d@x.example", &["b@x.example", "c@x.example", "d@x.example"]);
        check("[b'jo@x.example', f'{n}', u'o'c@x.example']", &["jo@x.example", "o'c@x.example"]);
        check("by b'jo@x.example, u'x.y@x.example (sic)", &["b'jo@x.example", "u'x.y@x.example"]);
        check("l'adresse d'Anne: anne'@x.example", &[]);
        check("\\n'jo@x.example'\\no'c@x.example", &["jo@x.example", "o'c@x.example"]);
        check("user@xn--bcher-kva.example", &["user@xn--bcher-kva.example"]);
    }

    #[test]
    fn what_follows_an_address_hides_it_from_nobody() {
        assert_eq!(found(Kind::Email, &format!("a@b.com{}", ".1".repeat(200))), ["a@b.com"]);
    }

    #[test]
    fn what_only_looks_like_an_address_is_left_alone() {
        for text in [
            "icon@2x.png",
            "getty@tty1.service",
            "git@github.com:org/repo.git",
            "@handle",
            "a@b",
            "a @ b.com",
            "a@b.1",
            "user@host:22",
            "x@.com",
            "a@-b.com",
            "a@b..com",
            "5 @ 3.50",
        ] {
            assert_eq!(found(Kind::Email, text), [""; 0], "{text}");
        }
        assert_eq!(found(Kind::Email, &format!("{}@x.com", "a".repeat(129))), [""; 0]);
        assert_eq!(found(Kind::Email, &format!("a@{}com", "b.".repeat(130))), [""; 0]);
    }
}
