//! Text of other scripts as phrases are written: in lower case, without what is invisible, without accents and vowel signs,
//! Korean in syllables. However it is written, the same words read the same.

use crate::fold::is_invisible;
use std::ops::Range;

/// The text as it is compared.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    read(text, |c, _| plain.push(c));
    plain
}

/// The bytes of a text that these are of [`plain`].
pub fn own(text: &str, plain: &Range<usize>) -> Range<usize> {
    let (mut passed, mut start, mut end) = (0, text.len(), text.len());
    read(text, |c, own| {
        if (passed..passed + c.len_utf8()).contains(&plain.start) {
            start = own.start;
        }
        if passed < plain.end {
            end = own.end;
        }
        passed += c.len_utf8();
    });
    start..end.max(start)
}

/// Hands on each character, with the bytes that it is made of.
fn read(text: &str, mut each: impl FnMut(char, Range<usize>)) {
    let mut last: Option<(char, Range<usize>)> = None;
    for (at, c) in text.char_indices().filter(|(_, c)| !is_invisible(*c) && !is_vowel_sign(*c)) {
        #[cfg(test)]
        crate::tests::took(1);
        let own = at..at + c.len_utf8();
        for c in c.to_lowercase().map(base).filter(|c| !is_invisible(*c)) {
            last = match last.take() {
                Some((before, from)) => match syllable(before, c) {
                    Some(both) => Some((both, from.start..own.end)),
                    None => {
                        each(before, from);
                        Some((c, own.clone()))
                    }
                },
                None => Some((c, own.clone())),
            };
        }
    }
    if let Some((c, own)) = last {
        each(c, own);
    }
}

/// Vowel signs of Arabic, and the line that makes its words longer.
fn is_vowel_sign(c: char) -> bool {
    matches!(c, '\u{610}'..='\u{61A}' | '\u{640}' | '\u{64B}'..='\u{65F}' | '\u{670}' | '\u{6D6}'..='\u{6DC}' | '\u{6DF}'..='\u{6E8}' | '\u{6EA}'..='\u{6ED}')
}

/// Letters of Cyrillic and Arabic without the accent that may come apart from them.
fn base(c: char) -> char {
    match c {
        'й' => 'и',
        'ё' => 'е',
        'آ' | 'أ' | 'إ' | 'ٱ' => 'ا',
        _ => c,
    }
}

/// Korean letters put together (Unicode, 3.12): a consonant and a vowel, or such a syllable and its last consonant.
fn syllable(before: char, c: char) -> Option<char> {
    const FIRST: u32 = 0xAC00;
    const LASTS: u32 = 28;
    const VOWELS: u32 = 21;
    let (before, c) = (u32::from(before), u32::from(c));
    let code = match (before, c) {
        (0x1100..=0x1112, 0x1161..=0x1175) => FIRST + ((before - 0x1100) * VOWELS + (c - 0x1161)) * LASTS,
        (FIRST..=0xD7A3, 0x11A8..=0x11C2) if (before - FIRST).is_multiple_of(LASTS) => before + (c - 0x11A7),
        _ => return None,
    };
    char::from_u32(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_the_same_however_they_are_written() {
        let check = |text: &str, expected: &str| assert_eq!(plain(text), expected, "{text}");
        check("ИГНОРИРУЙ", "игнорируи");
        check("игнорируи\u{306} все\u{308}", "игнорируи все");
        check("무\u{200B}시", "무시");
        check("\u{1106}\u{116E}\u{1109}\u{1175} \u{110B}\u{1175}\u{110C}\u{1165}\u{11AB}", "무시 이전");
        check("\u{1106}\u{3164}\u{116E}", "무");
        check("تَجَاهَلْ التَّعْلِيمَـات", "تجاهل التعليمات");
        check("忽\u{180B}略", "忽略");
    }

    #[test]
    fn places_are_those_of_the_text_as_it_is_written() {
        let text = "a\u{1106}\u{116E}и\u{306}\u{200B}Б\u{200B}";
        let of = |part: &str| {
            let start = plain(text).find(part).unwrap();
            &text[own(text, &(start..start + part.len()))]
        };
        assert_eq!(of("무"), "\u{1106}\u{116E}");
        assert_eq!(of("무и"), "\u{1106}\u{116E}и");
        assert_eq!(of("иб"), "и\u{306}\u{200B}Б");
    }
}
