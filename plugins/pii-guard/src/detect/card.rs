//! Payment card numbers: 13 to 19 digits in one piece or in groups of three and more with single spaces, tabs or
//! hyphens, of a known issuer's range, with a right check digit (Luhn, ISO/IEC 7812-1).

use super::{Follower, follower, is_word};
use tidegate_plugin_sdk::scan::{Place, Step};

pub(super) const MIN_DIGITS: usize = 13;
const MAX_DIGITS: usize = 19;
/// Shorter groups are lists of numbers, but for the last one, which holds what is left.
const MIN_GROUP: usize = 3;

pub(super) fn step(at: Place<'_>, rule: usize) -> Step {
    if at.before.is_some_and(is_word) || !at.rest.starts_with(|c: char| c.is_ascii_digit()) {
        return Step::No;
    }
    let bytes = at.rest.as_bytes();
    let mut digits = [0u8; MAX_DIGITS];
    let (mut count, mut end, mut best, mut is_open) = (0, 0, None, false);
    loop {
        let group = bytes[end..].iter().take_while(|b| b.is_ascii_digit()).count();
        if count + group > MAX_DIGITS {
            break;
        }
        for (digit, byte) in digits[count..].iter_mut().zip(&bytes[end..end + group]) {
            *digit = byte - b'0';
        }
        (count, end) = (count + group, end + group);
        if !may_start(&digits[..count]) {
            return Step::No;
        }
        match follower(at, end) {
            Follower::Border if is_card(&digits[..count]) => best = Some(end),
            Follower::Unknown => is_open = true,
            _ => {}
        }
        match bytes[end..] {
            [b' ' | b'-' | b'\t', next, ..] if next.is_ascii_digit() && group >= MIN_GROUP => end += 1,
            [b' ' | b'-' | b'\t'] if group >= MIN_GROUP && count < MAX_DIGITS => {
                is_open = !at.is_last;
                break;
            }
            _ => break,
        }
    }
    match best {
        _ if is_open => Step::More,
        Some(len) => Step::Match { len, rule },
        None => Step::No,
    }
}

/// Whether these first digits are within a range that card issuers use.
fn may_start(digits: &[u8]) -> bool {
    match *digits {
        [4 | 6, ..] | [3 | 5] | [2] => true,
        [3, second, ..] => matches!(second, 0 | 4..=9),
        [5, second, ..] => matches!(second, 0..=8),
        [2, second, ..] => matches!(second, 2..=7),
        _ => false,
    }
}

fn is_card(digits: &[u8]) -> bool {
    digits.len() >= MIN_DIGITS && luhn(digits) && digits.iter().any(|digit| *digit != digits[0])
}

fn luhn(digits: &[u8]) -> bool {
    let weigh = |(idx, digit): (usize, &u8)| match (idx % 2, u32::from(*digit) * 2) {
        (0, double) => double / 2,
        (_, double) if double > 9 => double - 9,
        (_, double) => double,
    };
    digits.iter().rev().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::found;

    #[test]
    fn numbers_with_a_right_check_digit_are_found() {
        // The issuers' published test numbers.
        let cards = [
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "4111\t1111\t1111\t1111",
            "378282246310005",
            "3782 822463 10005",
            "5555555555554444",
            "2223003122003222",
            "6011000990139424",
            "30569309025904",
            "3056 930902 5904",
            "4222222222222",
            "6304000000000000",
            "6212345678901232",
            "6205500000000000004",
        ];
        for card in cards {
            assert_eq!(found(Kind::Card, &format!("Pay with {card}, please.")), [card]);
            assert_eq!(found(Kind::Card, card), [card]);
        }
        assert_eq!(found(Kind::Card, "4111 1111 1111 1111 2025"), ["4111 1111 1111 1111"]);
        assert_eq!(found(Kind::Card, "1234 4111 1111 1111 1111"), ["4111 1111 1111 1111"]);
    }

    #[test]
    fn other_numbers_are_left_alone() {
        let others = [
            "4111111111111112",
            "41111111111111111111",
            "x4111111111111111",
            "4111111111111111x",
            "0000000000000000",
            "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
            "4111  1111 1111 1111",
            "4111\t\t1111\t1111\t1111",
            "41 11 11 11 11 11 11 11",
            "card_4111111111111111",
            "4111111111111111CVV",
            "1234567890123456",
            "4444444444444444",
            "2024-05-17 12:30",
            "3.141592653589793",
            "978-3-16-148410-0",
        ];
        for text in others {
            assert_eq!(found(Kind::Card, text), [""; 0], "{text}");
        }
    }
}
