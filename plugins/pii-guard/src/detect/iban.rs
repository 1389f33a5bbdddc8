//! International bank account numbers (ISO 13616): country, two check digits and the country's number of letters
//! and digits, with single spaces or hyphens anywhere, and a remainder of 1 modulo 97.

use super::{Follower, follower, is_word};
use tidegate_plugin_sdk::scan::{Place, Step};

/// Characters of an IBAN by country, from the SWIFT registry.
const LENGTHS: &[(u8, &str)] = &[
    (15, "NO"),
    (16, "BE"),
    (18, "DK FI FK FO GL NL SD"),
    (19, "MK SI"),
    (20, "AT BA EE KZ LT LU MN XK"),
    (21, "CH HR LI LV"),
    (22, "BG BH CR DE GB GE IE ME RS VA"),
    (23, "AE GI IL IQ OM SO TL"),
    (24, "AD CZ ES MD PK RO SA SE SK TN VG"),
    (25, "LY PT ST"),
    (26, "IS TR"),
    (27, "BI DJ FR GR IT MC MR SM"),
    (28, "AL AZ BY CY DO GT HN HU LB NI PL SV"),
    (29, "BR EG PS QA UA"),
    (30, "JO KW MU YE"),
    (31, "MT SC"),
    (32, "LC"),
    (33, "RU"),
];

pub(super) fn step(at: Place<'_>, rule: usize) -> Step {
    if at.before.is_some_and(is_word) {
        return Step::No;
    }
    let undecided = if at.is_last { Step::No } else { Step::More };
    let bytes = at.rest.as_bytes();
    let wanted = match bytes {
        [letter] if letter.is_ascii_alphabetic() => return undecided,
        [_, _, check, ..] if !check.is_ascii_digit() => return Step::No,
        [first, second, ..] => match length(*first, *second) {
            Some(wanted) => wanted,
            None => return Step::No,
        },
        _ => return Step::No,
    };
    if bytes.get(3).is_some_and(|check| !check.is_ascii_digit()) {
        return Step::No;
    }
    let (mut count, mut end, mut rest) = (0, 0, 0u32);
    let mut head = [0u8; 4];
    while count < wanted {
        match bytes[end..] {
            [c, ..] if c.is_ascii_alphanumeric() => {
                match head.get_mut(count) {
                    Some(place) => *place = c,
                    None => rest = push(rest, c),
                }
                (count, end) = (count + 1, end + 1);
            }
            [b' ' | b'-', next, ..] if next.is_ascii_alphanumeric() && count >= 4 => end += 1,
            [b' ' | b'-'] if count >= 4 => return undecided,
            [] => return undecided,
            _ => return Step::No,
        }
    }
    match follower(at, end) {
        Follower::Border if head.into_iter().fold(rest, push) == 1 => Step::Match { len: end, rule },
        Follower::Unknown => Step::More,
        _ => Step::No,
    }
}

/// Appends a character's value to a number modulo 97: a digit is one decimal place, a letter is two (A is 10).
fn push(rest: u32, c: u8) -> u32 {
    match char::from(c).to_digit(36).unwrap_or_default() {
        digit @ 0..10 => (rest * 10 + digit) % 97,
        letter => (rest * 100 + letter) % 97,
    }
}

/// Both letters are of one case: `De 12` begins a sentence.
fn length(first: u8, second: u8) -> Option<usize> {
    let are_letters = first.is_ascii_alphabetic() && second.is_ascii_alphabetic();
    if !are_letters || first.is_ascii_lowercase() != second.is_ascii_lowercase() {
        return None;
    }
    let country = [first.to_ascii_uppercase(), second.to_ascii_uppercase()];
    let row = LENGTHS.iter().find(|(_, countries)| countries.split(' ').any(|c| c.as_bytes() == country))?;
    Some(usize::from(row.0))
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::found;

    #[test]
    fn account_numbers_with_right_check_digits_are_found() {
        // Examples of the SWIFT registry.
        let ibans = [
            "DE89370400440532013000",
            "DE89 3704 0044 0532 0130 00",
            "GB29 NWBK 6016 1331 9268 19",
            "NO9386011117947",
            "FR1420041010050500013M02606",
            "MT84MALT011000012345MTLCAST001S",
            "gb29-nwbk-6016-1331-9268-19",
            "CH93 0076 2011 6238 5295 7",
            "BR1800360305000010009795493C1",
            "CR05 0152 0200 1026 2840 66",
        ];
        for iban in ibans {
            assert_eq!(found(Kind::Iban, &format!("Account {iban}, please.")), [iban]);
            assert_eq!(found(Kind::Iban, iban), [iban]);
        }
    }

    #[test]
    fn other_codes_are_left_alone() {
        let others = [
            "DE89370400440532013001",
            "DE8937040044053201300",
            "DE893704004405320130000",
            "XX89370400440532013000",
            "xDE89370400440532013000",
            "De89370400440532013000",
            "DE 89370400440532013000",
            "DE89",
        ];
        for text in others {
            assert_eq!(found(Kind::Iban, text), [""; 0], "{text}");
        }
    }
}
