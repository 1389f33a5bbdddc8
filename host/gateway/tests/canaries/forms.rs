//! The forms that a word could have been written in. A canary is lower-case letters and digits, which no escaping of JSON,
//! SQL, TOML or URLs touches unless it touches everything; these are the encodings that do.

/// The word as it is, in capitals, in base64 at each of the three places that it can have in a text, in hex, with every
/// character escaped as in JSON or a URL, in UTF-16, and backwards.
pub fn forms(word: &str) -> Vec<Vec<u8>> {
    let each = |form: &dyn Fn(u8) -> String| word.bytes().map(form).collect::<String>().into_bytes();
    let mut forms = vec![
        word.as_bytes().to_vec(),
        word.to_uppercase().into_bytes(),
        word.bytes().rev().collect(),
        each(&|byte| format!("{byte:02x}")),
        each(&|byte| format!("{byte:02X}")),
        each(&|byte| format!("\\u{byte:04x}")),
        each(&|byte| format!("%{byte:02x}")),
        each(&|byte| format!("%{byte:02X}")),
        word.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        word.encode_utf16().flat_map(u16::to_be_bytes).collect(),
    ];
    for alphabet in [STANDARD, FOR_URLS] {
        forms.extend((0..3).map(|before| in_base64(word.as_bytes(), before, alphabet)));
    }
    forms
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const FOR_URLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The characters that only the word decides, where so many bytes of a group of three are before it.
fn in_base64(word: &[u8], before: usize, alphabet: &[u8; 64]) -> Vec<u8> {
    let bits: Vec<u8> = word.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    // The first character that begins within the word.
    let first = (6 - before * 8 % 6) % 6;
    let value = |bits: &[u8]| bits.iter().fold(0_usize, |value, bit| value * 2 + usize::from(*bit));
    bits[first..].chunks_exact(6).map(|bits| alphabet[value(bits)]).collect()
}

/// How often any form of a word is in `bytes`, which may be a long log.
pub fn count(bytes: &[u8], forms: &[Vec<u8>]) -> usize {
    forms.iter().map(|form| memchr::memmem::find_iter(bytes, form).count()).sum()
}

#[test]
fn each_form_is_found() {
    let forms = forms("canary7f3a");
    for text in [
        "it is canary7f3a here",
        "CANARY7F3A",
        "a3f7yranac",
        "63616e6172793766336",
        "Y2FuYXJ5N2YzYQ==",
        "aXMgY2FuYXJ5N2YzYSBoZXJl",
        "aXQgaXM6IGNhbmFyeTdmM2Egbm93",
        "eGNhbmFyeTdmM2F4",
        r"\u0063\u0061\u006e\u0061\u0072\u0079\u0037\u0066\u0033\u0061",
        "%63%61%6e%61%72%79%37%66%33%61",
    ] {
        let text = if text.starts_with("6361") { format!("{text}1") } else { text.to_owned() };
        assert!(count(text.as_bytes(), &forms) > 0, "{text}");
    }
    assert_eq!(count(b"a canary, but another: canary7f3b", &forms), 0);
}
