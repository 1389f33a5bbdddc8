//! One plain letter for each of the many ways to write it: accents, full width, mathematical alphabets, letters of
//! other scripts that look the same.

use tidegate_plugin_sdk::text::is_ignorable;

/// What a character stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folded {
    /// A letter or digit as it stands, in lower case.
    Plain(u8),
    /// A letter that looks like this one but is another: of Cyrillic or Greek, or a styled variant.
    LookAlike(u8),
    /// A letter of another script, which looks like no Latin one.
    Foreign,
    /// Invisible: it joins, hides or marks, and separates nothing.
    Invisible,
    /// Everything else: separates words.
    Other,
}

/// Folds a character.
pub fn fold(c: char) -> Folded {
    match c {
        'a'..='z' | '0'..='9' => Folded::Plain(c as u8),
        'A'..='Z' => Folded::Plain(c.to_ascii_lowercase() as u8),
        _ if c.is_ascii() => Folded::Other,
        _ => fold_wide(c),
    }
}

fn fold_wide(c: char) -> Folded {
    if let Some(plain) = accented(c) {
        return Folded::Plain(plain);
    }
    if let Some(plain) = styled(c).or_else(|| other_script(c)) {
        return Folded::LookAlike(plain);
    }
    match c {
        c if is_invisible(c) => Folded::Invisible,
        c if c.is_alphanumeric() => Folded::Foreign,
        _ => Folded::Other,
    }
}

/// Whether a character joins, hides or marks, and separates nothing.
pub fn is_invisible(c: char) -> bool {
    is_ignorable(c) || is_accent(c)
}

/// Accents that come apart from their letter, of any alphabet that has such; also what circles or strikes out a letter.
fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36F}' | '\u{483}'..='\u{489}' | '\u{1AB0}'..='\u{1AFF}' | '\u{1DC0}'..='\u{1DFF}' | '\u{20D0}'..='\u{20FF}' | '\u{FE20}'..='\u{FE2F}')
}

/// Letters with something at, above, below or through them. A table: the standard library has none, and with both cases in it
/// no letter has to be lower-cased first.
fn accented(c: char) -> Option<u8> {
    let code = c as u32;
    let (bases, first): (&[u8], u32) = match code {
        0xC0..=0x24F => (LATIN, 0xC0),
        0x1E00..=0x1EFF => (LATIN_ADDITIONAL, 0x1E00),
        _ => return None,
    };
    bases.get((code - first) as usize).copied().filter(|base| *base != NO_BASE)
}

/// For a character that is no letter with an accent, and for a letter whose other case is in neither table.
const NO_BASE: u8 = b'.';

/// Latin-1 from `À` on, Latin Extended-A and Extended-B: what Unicode takes apart into one letter and accents, letters with a
/// stroke or a hook, those without their dot, `ß` and the long `s`. 64 in a line.
const LATIN: &[u8; 400] = b"\
    aaaaaa.ceeeeiiii.nooooo.ouuuuy.saaaaaa.ceeeeiiii.nooooo.ouuuuy.y\
    aaaaaaccccccccddddeeeeeeeeeegggggggghhhhiiiiiiiiii..jjkk.lllllll\
    lllnnnnnn...oooooo..rrrrrrssssssssttttttuuuuuuuuuuuuwwyyyzzzzzzs\
    b.bb...cc..dd....ff.....kkl...n.oo..pp.....ttt.uu..yyzz.........\
    .............aaiioouuuuuuuuuu.aaaa..ggggkkoooo..j...gg..nnaa..oo\
    aaaaeeeeiiiioooorrrruuuusstt..hhnd..zzaaeeooooooooyylntj...ccl..\
    ...b..eejjqqrryy";

/// Latin Extended Additional.
const LATIN_ADDITIONAL: &[u8; 256] = b"\
    aabbbbbbccddddddddddeeeeeeeeeeffgghhhhhhhhhhiiiikkkkkkllllllllmm\
    mmmmnnnnnnnnoooooooopppprrrrrrrrssssssssssttttttttuuuuuuuuuuvvvv\
    wwwwwwwwwwxxxxyyzzzzzzhtwyas..s.aaaaaaaaaaaaaaaaaaaaaaaaeeeeeeee\
    eeeeeeeeiiiioooooooooooooooooooooooouuuuuuuuuuuuuuyyyyyyyy....yy";

/// Full width, circled, squared and mathematical letters and digits.
fn styled(c: char) -> Option<u8> {
    let code = c as u32;
    let letter = |first: u32| u8::try_from((code - first) % 26).ok().map(|at| b'a' + at);
    match code {
        0xFF21..=0xFF3A => letter(0xFF21),
        0xFF41..=0xFF5A => letter(0xFF41),
        0x24B6..=0x24E9 => letter(0x24B6),
        // Alphabets of 26 capitals and 26 small letters, one behind the other.
        0x1D400..=0x1D6A3 => letter(0x1D400),
        0x1D6A4..=0x1D6A5 => Some(b"ij"[(code - 0x1D6A4) as usize]),
        0x1D7CE..=0x1D7FF => u8::try_from((code - 0x1D7CE) % 10).ok().map(|digit| b'0' + digit),
        0x249C..=0x24B5 => letter(0x249C),
        0x1F110..=0x1F129 => letter(0x1F110),
        0x1F130..=0x1F149 => letter(0x1F130),
        0x1F150..=0x1F169 => letter(0x1F150),
        0x1F170..=0x1F189 => letter(0x1F170),
        0x2100..=0x214F => paired(LETTERLIKE, c),
        0xFF10..=0xFF19 => u8::try_from(code - 0xFF10).ok().map(|digit| b'0' + digit),
        _ => None,
    }
}

/// The letters that the mathematical alphabets leave out since Unicode had them before, and others of their block.
const LETTERLIKE: &str = "ℂcℊgℋhℌhℍhℎhℏhℐiℑiℒlℓlℕn℘pℙpℚqℛrℜrℝrℤzℨz\u{212A}k\u{212B}aℬbℭc℮eℯeℰeℱfℳmℴoℹiⅅdⅆdⅇeⅈiⅉj";

/// Letters of other scripts that are taken for Latin ones.
fn other_script(c: char) -> Option<u8> {
    const PAIRS: &str = "аaеeоoрpсcуyхxіiјjѕsһhԁdгrкkмmтtвbнnпnАaВbЕeКkМmНhОoРpСcТtУyХxІiЅsЈj\
                         αaοoνvρpιiκkτtυuεeηnΑaΒbΕeΖzΗhΙiΚkΜmΝnΟoΡpΤtΥyΧxɡgɑaɩi";
    paired(PAIRS, c)
}

/// What stands behind a character in a list of pairs.
fn paired(pairs: &str, c: char) -> Option<u8> {
    let mut chars = pairs.chars();
    while let (Some(other), Some(latin)) = (chars.next(), chars.next()) {
        if other == c {
            return u8::try_from(latin).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_folded_and_others_told_apart() {
        let check = |c, expected| assert_eq!(fold(c), expected, "{c:?}");
        check('I', Folded::Plain(b'i'));
        check('é', Folded::Plain(b'e'));
        for pair in "Śs Čc Žz Ćc Łl řr ťt ịi ạa ẹe Đd Øo İi ıi ơo ẞs ỹy Ȳy Ǫo ȷj".split(' ') {
            let plain = pair.bytes().last().unwrap();
            pair.chars().for_each(|c| check(c, Folded::Plain(plain)));
        }
        check('ｉ', Folded::LookAlike(b'i'));
        check('𝐈', Folded::LookAlike(b'i'));
        check('𝐢', Folded::LookAlike(b'i'));
        check('о', Folded::LookAlike(b'o'));
        check('ж', Folded::Foreign);
        check('令', Folded::Foreign);
        check('\u{200B}', Folded::Invisible);
        check('\u{E0069}', Folded::Invisible);
        for c in
            "\u{61C}\u{115F}\u{1160}\u{17B4}\u{180B}\u{180F}\u{3164}\u{FFA0}\u{FFF0}\u{1BCA0}\u{1D173}\u{E0FFF}\u{20DD}"
                .chars()
        {
            check(c, Folded::Invisible);
        }
        for (c, plain) in "ℊgℴoℯeℎhℐi\u{212A}kⅇe🅘i🅩z🅸i🆉z🄐a⒜a𝚤i𝟎0𝟿9"
            .chars()
            .collect::<Vec<_>>()
            .chunks(2)
            .map(|pair| (pair[0], pair[1]))
        {
            check(c, Folded::LookAlike(plain as u8));
        }
        check('×', Folded::Other);
        check(' ', Folded::Other);
        check('æ', Folded::Foreign);
        check('ǆ', Folded::Foreign);
    }

    #[test]
    fn a_capital_is_read_as_its_small_letter() {
        let mut num_letters = 0;
        for c in ('\u{C0}'..='\u{24F}').chain('\u{1E00}'..='\u{1EFF}') {
            // Of `İ` an accent is left over behind the letter.
            let small = c.to_lowercase().next().unwrap();
            if let Folded::Plain(_) = fold(c) {
                assert_eq!(fold(c), fold(small), "{c} and {small}");
                num_letters += 1;
            } else if small != c {
                assert!(!matches!(fold(small), Folded::Plain(_)), "{c} and {small}");
            }
        }
        assert_eq!(num_letters, 556);
    }
}
