//! Keys and tokens: private keys in lines, well-known prefixes, JSON web tokens, and long words that no person would write.
//!
//! A key may be longer than a stream may hold back, so one that is sure is reported open and swallowed as it
//! comes.

use super::{DOTTED_KEY_RULE, PEM_RULE, is_word, pem};
use tidegate_plugin_sdk::scan::{Place, Step};

/// Shorter words are no keys, but for those of prefixes with a `-`, which have digits behind it; nor are shorter web tokens: a
/// signature alone has 43 bytes.
pub(super) const MIN_BYTES: usize = 20;
/// Of a prefix with a `-` and what is behind it.
pub(super) const MIN_HYPHENED_BYTES: usize = 15;
/// A word that is longer is decided on what is there.
const MAX_WORD_BYTES: usize = 256;

/// A prefix, and the fewest bytes behind it.
const PREFIXES: &[(&str, usize)] = &[
    ("sk-", 18),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("pk_live_", 16),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghu_", 30),
    ("ghs_", 30),
    ("ghr_", 30),
    ("github_pat_", 22),
    ("glpat-", 20),
    ("xoxa-", 10),
    ("xoxb-", 10),
    ("xoxo-", 10),
    ("xoxp-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 35),
    ("hf_", 30),
    ("npm_", 36),
    ("pypi-", 40),
    ("SG.", 40),
    ("dapi", 32),
    ("glsa_", 32),
    ("shpat_", 32),
    ("shpca_", 32),
    ("shppa_", 32),
    ("shpss_", 32),
];

/// Words without a known prefix: at least this long, and with letters of both cases and digits well mixed. No longer than that
/// either: then most are no keys but text in base64, as source maps have it, which is as well mixed and has no signs.
const MIN_MIXED_BYTES: usize = 32;
const MAX_MIXED_BYTES: usize = 200;

/// So much behind a sign tells longer base64 from words, and from another key.
const PIECE_BYTES: usize = 64;

/// What is as random as a key and known to everybody: checksums of scripts and packages, with the length of their base64.
const CHECKSUMS: [(&str, usize); 3] = [("sha256-", 44), ("sha384-", 64), ("sha512-", 88)];
/// And public keys of SSH, as the base64 of their kind's name begins; none is shorter than [`MIN_BYTES`].
const PUBLIC_KEYS: [&str; 7] = [
    "AAAAB3NzaC1yc2EAAAAB",
    "AAAAB3NzaC1yc2EAAAAD",
    "AAAAB3NzaC1kc3MAAACB",
    "AAAAC3NzaC1lZDI1NTE5AAAAI",
    "AAAAE2VjZHNhLXNoYTIt",
    "AAAAGnNrLXNzaC1lZDI1",
    "AAAAInNrLWVjZHNhLXNoYTIt",
];
/// Of one of RSA with 2048 bits; of a longer one this much is known as such.
const MAX_PUBLIC_KEY_BYTES: usize = 372;

/// A private key may begin here.
const DASHES: &str = "-----";

pub(super) fn step(at: Place<'_>, rule: usize) -> Step {
    if at.rest.starts_with('-') {
        return pem::step(at);
    }
    if at.before.is_some_and(is_word) || !at.rest.starts_with(is_key) {
        return Step::No;
    }
    let len = word(at.rest);
    if is_short(&at.rest[..len], &at.rest[len..]) {
        return Step::No;
    }
    if let Some(step) = public(at).or_else(|| web_token(at)) {
        return step;
    }
    if let Some((prefix, min)) = PREFIXES.iter().find(|(prefix, _)| at.rest.starts_with(prefix)) {
        return prefixed(at, rule, prefix.len(), *min);
    }
    match is_whole(at, len, Dots::End) {
        true if is_mixed(&at.rest[..len]) => match is_piece(at, len) {
            Some(true) => Step::No,
            Some(false) => Step::Match { len, rule },
            None => Step::More,
        },
        false if len <= MAX_MIXED_BYTES => Step::More,
        _ => Step::No,
    }
}

/// Whether a word is too short for any key, known or not: spares most words the search for beginnings. Neither one that goes on behind
/// a dot nor a checksum, which does behind a sign.
fn is_short(word: &str, behind: &str) -> bool {
    word.len() < MIN_HYPHENED_BYTES && !behind.is_empty() && !behind.starts_with('.') && !word.starts_with("sha")
}

/// Passes over a checksum or a public key whole: its pieces look like keys.
fn public(at: Place<'_>) -> Option<Step> {
    let run =
        |from: usize, most: usize| from + at.rest[from..].chars().take(most).take_while(|c| is_base64(*c)).count();
    let is_cut = |len: usize| len == at.rest.len() && !at.is_last;
    if let Some((begin, digest)) = CHECKSUMS.iter().find(|(begin, _)| at.rest.starts_with(begin)) {
        let (len, expected) = (run(begin.len(), digest + 1), begin.len() + digest);
        return match len <= expected && is_cut(len) {
            true => Some(Step::More),
            false => (len == expected).then_some(Step::Skip(len)),
        };
    }
    PUBLIC_KEYS.iter().find(|begin| at.rest.starts_with(**begin))?;
    let len = run(0, MAX_PUBLIC_KEY_BYTES);
    Some(if len < MAX_PUBLIC_KEY_BYTES && is_cut(len) { Step::More } else { Step::Skip(len) })
}

/// Whether a word is a piece of longer base64, an image say: much more of it follows behind a sign. `None` where more text
/// may make it one.
fn is_piece(at: Place<'_>, len: usize) -> Option<bool> {
    let Some(next) = at.rest[len..].strip_prefix(['+', '/']) else { return Some(false) };
    let more = next.chars().take(PIECE_BYTES).take_while(|c| is_base64(*c)).count();
    if more == next.len() && more < PIECE_BYTES && !at.is_last {
        return None;
    }
    Some(more == PIECE_BYTES && is_mixed(&next[..more].replace(['+', '/', '='], "")))
}

fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=')
}

fn prefixed(at: Place<'_>, rule: usize, prefix: usize, min: usize) -> Step {
    let dots = if at.rest[..prefix].ends_with('.') { Dots::Inside } else { Dots::End };
    let len = match dots {
        Dots::Inside => dotted(at.rest),
        Dots::End => word(at.rest),
    };
    let is_long = len >= prefix + min;
    match is_whole(at, len, dots) {
        _ if len == MAX_WORD_BYTES => {
            if is_secret(&at.rest[..len], prefix) {
                Step::Open { len: before_dashes(at.rest, len), rule }
            } else {
                Step::No
            }
        }
        false => Step::More,
        true if is_long && (is_secret(&at.rest[..len], prefix) || is_id(&at.rest[..len])) => Step::Match { len, rule },
        true => Step::No,
    }
}

/// Behind the start of an open token: what still belongs to it.
pub(super) fn go_on(at: Place<'_>, rule: usize) -> Step {
    if rule >= PEM_RULE {
        return pem::go_on(at, rule);
    }
    let has_dots = rule == DOTTED_KEY_RULE;
    let found = if has_dots { dotted(at.rest) } else { word(at.rest) };
    let is_cut = found == at.rest.len() && !at.is_last;
    match if is_cut || found == MAX_WORD_BYTES { before_dashes(at.rest, found) } else { found } {
        0 if is_cut || has_dots && at.rest == "." && !at.is_last => Step::More,
        0 => Step::No,
        len => Step::Open { len, rule },
    }
}

/// Of a token of `len` bytes that may go on, what stands before the dashes at its end: a private key may begin with them.
fn before_dashes(text: &str, len: usize) -> usize {
    text[..len].trim_end_matches('-').len()
}

/// Three parts of base64url with dots between; header and payload are JSON objects, so both begin with `eyJ`.
fn web_token(at: Place<'_>) -> Option<Step> {
    if !at.rest.starts_with("eyJ") {
        return None;
    }
    let header = word(at.rest);
    if header == MAX_WORD_BYTES {
        return None;
    }
    match &at.rest[header..] {
        "" | "." | ".e" | ".ey" if !at.is_last => Some(Step::More),
        rest if header >= 10 && rest.starts_with(".eyJ") => {
            let found = dotted(at.rest);
            let len = before_dashes(at.rest, found);
            match is_whole(at, found, Dots::Inside) {
                _ if len >= MIN_BYTES => Some(Step::Open { len, rule: DOTTED_KEY_RULE }),
                true => None,
                false => Some(Step::More),
            }
        }
        _ => None,
    }
}

/// Whether a dot may stand inside of a token.
#[derive(Clone, Copy)]
enum Dots {
    Inside,
    End,
}

/// Whether the token of `len` bytes at the start of the rest ends there, whatever follows.
fn is_whole(at: Place<'_>, len: usize, dots: Dots) -> bool {
    let may_go_on = match (&at.rest[len..], dots) {
        ("", _) | (".", Dots::Inside) => !at.is_last,
        _ => false,
    };
    !may_go_on
}

fn is_key(c: char) -> bool {
    u8::try_from(c).is_ok_and(|byte| KEY_BYTES[usize::from(byte)])
}

/// Bytes of the word at the start, at most [`MAX_WORD_BYTES`]; five dashes end it.
fn word(text: &str) -> usize {
    run(text.as_bytes(), |_| false)
}

/// The same, with single dots inside.
fn dotted(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_inside = |at: usize| bytes[at] == b'.' && bytes.get(at + 1).is_some_and(|next| is_key(char::from(*next)));
    run(bytes, is_inside)
}

/// One loop for letters and dashes, each told from a table: in a long text of words with hyphens every place begins one.
fn run(bytes: &[u8], is_inside: impl Fn(usize) -> bool) -> usize {
    let mut num_dashes = 0;
    for (at, byte) in bytes.iter().enumerate().take(MAX_WORD_BYTES) {
        if !KEY_BYTES[usize::from(*byte)] && !is_inside(at) {
            return at;
        }
        num_dashes = if *byte == b'-' { num_dashes + 1 } else { 0 };
        if num_dashes == DASHES.len() {
            return at + 1 - num_dashes;
        }
    }
    bytes.len().min(MAX_WORD_BYTES)
}

/// What keys are made of.
const KEY_BYTES: [bool; 256] = {
    let mut bytes = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        bytes[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_' || byte as u8 == b'-';
        byte += 1;
    }
    bytes
};

/// Behind a prefix stands something with digits, not words with signs between. Behind one that ends in `_` letters of both cases in one
/// piece will do: tokens of Hugging Face have no digits.
fn is_secret(word: &str, prefix: usize) -> bool {
    let (prefix, tail) = word.split_at(prefix);
    let has = |is: fn(&u8) -> bool| tail.as_bytes().iter().any(is);
    let has_both_cases = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    let is_one_piece = prefix.ends_with('_') && !tail.contains(['_', '-']);
    has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic) || is_one_piece && has_both_cases
}

/// An id of AWS, whose sixteen characters behind the prefix are base32: one of thirty has no digit.
fn is_id(word: &str) -> bool {
    let tail = word.strip_prefix("AKIA").or_else(|| word.strip_prefix("ASIA"));
    tail.is_some_and(|tail| tail.len() == 16 && tail.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7')))
}

/// Random text in base 62 changes between upper case, lower case and digits at six of ten borders; names in
/// CamelCase with a number do at three, and hashes in hexadecimal have no upper case or no lower.
fn is_mixed(word: &str) -> bool {
    #[derive(PartialEq)]
    enum Class {
        Upper,
        Lower,
        Digit,
        Other,
    }
    if !(MIN_MIXED_BYTES..=MAX_MIXED_BYTES).contains(&word.len()) {
        return false;
    }
    let class = |b: u8| match b {
        b'A'..=b'Z' => Class::Upper,
        b'a'..=b'z' => Class::Lower,
        b'0'..=b'9' => Class::Digit,
        _ => Class::Other,
    };
    let bytes = word.as_bytes();
    let count = |wanted: Class| bytes.iter().filter(|b| class(**b) == wanted).count();
    let changes = bytes.windows(2).filter(|pair| class(pair[0]) != class(pair[1])).count();
    count(Class::Digit) >= 3 && count(Class::Upper) >= 3 && count(Class::Lower) >= 3 && changes * 20 >= word.len() * 9
}

#[cfg(test)]
mod tests {
    use super::{MIN_BYTES, MIN_HYPHENED_BYTES, PREFIXES};
    use crate::detect::Kind;
    use crate::detect::tests::found;

    // Put together at run time, so that no scanner takes this file for a leak.
    fn key(prefix: &str, tail: &str) -> String {
        format!("{prefix}{tail}")
    }

    /// What [`crate::detect::skim`] hangs on.
    #[test]
    fn shorter_keys_have_a_hyphen_and_digits() {
        let shortest = PREFIXES.iter().map(|(prefix, min)| prefix.len() + min).min();
        assert_eq!(shortest, Some(MIN_HYPHENED_BYTES));
        for (prefix, min) in PREFIXES.iter().filter(|(prefix, min)| prefix.len() + min < MIN_BYTES) {
            assert!(prefix.contains('-'), "{prefix}");
            assert_eq!(found(Kind::ApiKey, &format!("{prefix}{} ", "a".repeat(*min))), [""; 0]);
            assert_eq!(found(Kind::ApiKey, &format!("{prefix}{}1 ", "a".repeat(*min))).len(), 1, "{prefix}");
        }
    }

    #[test]
    fn keys_are_found_by_prefix_and_by_shape() {
        let mixed = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3h";
        let long = mixed.repeat(12);
        let keys = [
            key("sk-", "abcdefghij0123456789"),
            key("sk-proj-", "Ab12-Cd34_Ef56Gh78Ij90Kl"),
            key("sk-ant-api03-", &long),
            key("ghp_", &mixed[..32]),
            key("AKIA", "IOSFODNN7EXAMPLE"),
            key("xoxb-", "123456789012-abcdef"),
            key("AIza", &format!("{mixed}x")),
            key("SG.", &format!("{mixed}.{mixed}")),
            mixed.to_owned(),
            key("eyJ", "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
            key("eyJ", &format!("hbGciOiJIUzI1NiJ9.eyJ{long}.{long}")),
        ];
        for key in keys {
            assert_eq!(found(Kind::ApiKey, &format!("token={key}. Next")).concat(), key);
            assert_eq!(found(Kind::ApiKey, &key).concat(), key);
        }
    }

    #[test]
    fn an_id_of_aws_is_found_without_a_digit() {
        for prefix in ["AKIA", "ASIA"] {
            let id = key(prefix, "IOSFODNNAEXAMPLE");
            assert_eq!(found(Kind::ApiKey, &format!("token={id}. Next")), [id.as_str()]);
            for other in [format!("{id}S"), id.to_lowercase(), id.replace("NN", "N_"), id[..19].to_owned()] {
                assert_eq!(found(Kind::ApiKey, &other), [""; 0], "{other}");
            }
        }
    }

    #[test]
    fn a_token_of_letters_alone_is_found_behind_a_prefix_of_names() {
        let letters = "pJljqEftFjcmdUUGoIpKNbwWroHFBrFTki";
        for token in [key("hf_", letters), key("npm_", &format!("{letters}xY")), key("hf_", &letters.repeat(12))] {
            assert_eq!(found(Kind::ApiKey, &format!("token={token}. Next")).concat(), token);
        }
        for other in [
            "hf_hub_download_and_the_cache_of_All_models".to_owned(),
            "hf_hub-download-and-the-cache-of-All-models".to_owned(),
            key("hf_", &letters.to_lowercase()),
            key("hf_", &letters.to_uppercase()),
            key("hf_", &letters[..29]),
            key("glpat-", letters),
            letters.to_owned(),
        ] {
            assert_eq!(found(Kind::ApiKey, &other), [""; 0], "{other}");
        }
    }

    #[test]
    fn signs_beside_a_key_hide_it_from_nobody() {
        let key = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3h";
        for text in [
            format!("+{key}\n"),
            format!("key+{key}+and+then+more+of+it"),
            format!("\"x\" +{key};"),
            format!("https://example.com/{key}/edit?usp=sharing"),
            format!("{key}=="),
            format!("+{key}="),
            format!("https://example.com/{key}/v1/Users"),
            format!("{key}/Report2024"),
            format!("{key}+Abcdefg1"),
            format!("https://example.com/{key}=="),
            format!("{key}/v1/Users2/of/the/Project1234/and/all/that/Belongs/to/them/in/Version3"),
        ] {
            assert_eq!(found(Kind::ApiKey, &text), [key], "{text}");
        }
        assert_eq!(found(Kind::ApiKey, &format!("{key}/{key}")), [key, key]);
    }

    /// Of digests the first characters are as random as the others.
    #[test]
    fn checksums_and_what_is_part_of_longer_base64_are_left_alone() {
        let digest = |seed: &str, kind: &str, len: usize| {
            let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let mut state = seed
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
            let random = (0..len).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(digits[(state >> 58) as usize])
            });
            format!("{kind}{}", random.collect::<String>())
        };
        for seed in 0..500 {
            let seed = seed.to_string();
            for (kind, len, padding) in [("sha256-", 43, "="), ("sha384-", 64, ""), ("sha512-", 86, "==")] {
                let text = format!("integrity=\"{}{padding}\"", digest(&seed, kind, len));
                assert_eq!(found(Kind::ApiKey, &text), [""; 0], "{text}");
            }
        }
        // What is as long as no digest is none.
        let key = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3h";
        assert_eq!(found(Kind::ApiKey, &format!("sha256-{key}")), [format!("sha256-{key}")]);
    }

    /// `{"version":3,"file":"a.js","sources":["a.ts"],"names":[],` and so on: it begins as a web token does, too.
    #[test]
    fn text_in_base64_is_left_alone_where_it_is_longer_than_keys_are() {
        let map = "eyJ2ZXJzaW9uIjozLCJmaWxlIjoiYS5qcyIsInNvdXJjZXMiOlsiYS50cyJdLCJuYW1lcyI6W10s";
        assert_eq!(found(Kind::ApiKey, map), [map], "it is mixed as keys are");
        for times in [3, 4, 40] {
            let text = format!("//# sourceMappingURL=data:application/json;base64,{}\n", map.repeat(times));
            assert_eq!(found(Kind::ApiKey, &text), [""; 0], "{text}");
        }
    }

    #[test]
    fn words_hashes_and_names_are_left_alone() {
        let others = [
            "sk-learn-contrib-is-a-package",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "123e4567-e89b-12d3-a456-426614174000",
            "AbstractSingletonProxyFactoryBeanBuilder2Test3Impl4",
            "DONAUDAMPFSCHIFFFAHRTSGESELLSCHAFT1234",
            "task-1234567890123456789012",
            "AKIA",
            "eyJust.eyJoking",
            "eyJexample.eyJ",
            "this-is-a-very-long-slug-of-a-blog-post-2024-05-17",
            "____________________________________",
            "sha512-zDjYCpUpO5rchIRCanwZ1bevlyYQr6VkGFMoIFVbVmm+lHNLL96FYLYqENzjZ6j3vJlNPCnPswV5VWwKKVdrOr==",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIqIcFXchnam3BG4/GGKRYDzNiBDdA38fY8JcuoDJ66Q5 laptop-2024",
        ];
        for text in others {
            assert_eq!(found(Kind::ApiKey, text), [""; 0], "{text}");
        }
    }
}
