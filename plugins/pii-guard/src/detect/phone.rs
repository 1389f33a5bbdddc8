//! Phone numbers: international ones (`+49 30 1234567`, `0049 30 ...`), North American ones (`(415) 555-2671`,
//! `415-555-2671`), Chinese mobile ones (`138 0013 8000`) and national ones with a leading zero (`030 1234567`,
//! `01 23 45 67 89`). Dates, amounts and plain long numbers are not.

use super::is_word;
use tidegate_plugin_sdk::scan::{Place, Step};

const MAX_DIGITS: usize = 15;
/// Of a number without `+` in front.
pub(super) const MIN_PLAIN_DIGITS: usize = 9;
/// Behind a space that comes after so many digits another number may begin: it may be whole there.
const FULL_DIGITS: usize = 10;
/// What comes behind such a space belongs to it all the same where the groups before and behind are short, as in
/// `+90 532 123 45 67`; one of more digits ends a number.
const MAX_SHORT_GROUP: u8 = 3;

pub(super) fn step(at: Place<'_>, rule: usize) -> Step {
    // Behind a dot, a slash or a hyphen there is more of a version, a path or a number, but for a `+`: `Tel.+49 30 1234567`.
    let joins = if at.rest.starts_with('+') { "+" } else { "+-./" };
    let is_inside = at.before.is_some_and(|c| is_word(c) || joins.contains(c));
    if is_inside || !at.rest.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '(') {
        return Step::No;
    }
    let number = Number::read(at.rest);
    if number.is_cut && !at.is_last {
        return if number.may_be_phone() { Step::More } else { Step::No };
    }
    let is_phone = |number: &Number| !at.rest[number.end..].starts_with(is_word) && number.is_phone();
    match [Some(number), number.up_to_full()].into_iter().flatten().find(is_phone) {
        Some(number) => Step::Match { len: number.end, rule },
        None => Step::No,
    }
}

/// Digits in groups, as far as they may belong to one number.
#[derive(Clone, Copy, Default)]
struct Number {
    has_plus: bool,
    /// `(` before the first digit.
    has_parenthesis: bool,
    digits: List,
    /// Digits of each group.
    groups: List,
    /// What stands between groups, its first character.
    separators: List,
    /// Behind the last digit.
    end: usize,
    /// The text ended before the number did.
    is_cut: bool,
    /// Where it may be whole already, behind a space or a slash: what follows may be another number.
    full: Option<Full>,
}

/// How far a number went: its digits, groups and bytes.
#[derive(Clone, Copy)]
struct Full {
    num_digits: usize,
    num_groups: usize,
    end: usize,
}

/// A few bytes in place; a number has at most one more digit than a phone number may have.
#[derive(Clone, Copy, Default)]
struct List {
    bytes: [u8; MAX_DIGITS + 1],
    len: usize,
}

impl List {
    /// Further ones are counted only.
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
        }
        self.len += 1;
    }
}

impl std::ops::Deref for List {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.min(self.bytes.len())]
    }
}

impl Number {
    fn read(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut number = Self { has_plus: bytes[0] == b'+', ..Self::default() };
        let mut at = usize::from(number.has_plus);
        number.has_parenthesis = bytes.get(at) == Some(&b'(');
        at += usize::from(number.has_parenthesis);
        loop {
            let group = number.take_group(&bytes[at..]);
            at += group;
            if group > 0 {
                number.end = at;
            }
            let is_full = number.digits.len > MAX_DIGITS;
            if group == 0 || is_full || at == bytes.len() {
                number.is_cut = at == bytes.len() && !is_full;
                return number;
            }
            let between = separator(&bytes[at..]);
            if between == 0 || bytes[at] == b' ' && !number.goes_on(&bytes[at + 1..]) {
                return number;
            }
            if bytes[at] == b'/' && number.full.is_none_or(|full| bytes[full.end] != b'/') && number.is_phone() {
                number.full = Some(number.extent());
            }
            match bytes.get(at + between) {
                None => number.is_cut = true,
                Some(next) if next.is_ascii_digit() => {
                    number.separators.push(bytes[at]);
                    at += between;
                    continue;
                }
                Some(_) => {}
            }
            return number;
        }
    }

    /// What is read of it.
    fn extent(&self) -> Full {
        Full { num_digits: self.digits.len, num_groups: self.groups.len, end: self.end }
    }

    /// Whether what follows, which begins so, is another number. Two zeros in front say what `+` says.
    fn is_full(&self, next: Option<&u8>) -> bool {
        let full = if self.digits.starts_with(b"00") && next != Some(&b'0') { FULL_DIGITS + 2 } else { FULL_DIGITS };
        self.digits.len >= full
    }

    /// Whether what follows behind a space may be of this number.
    fn goes_on(&mut self, behind: &[u8]) -> bool {
        if !self.is_full(behind.first()) {
            return true;
        }
        self.full.get_or_insert(self.extent());
        let last = self.groups.last().copied().unwrap_or_default();
        let next = behind.iter().take_while(|byte| byte.is_ascii_digit()).count();
        last <= MAX_SHORT_GROUP && next <= usize::from(last) && (next > 0 || behind.is_empty())
    }

    /// The same number as far as where it may be whole, if it went on from there.
    fn up_to_full(mut self) -> Option<Self> {
        let full = self.full.filter(|full| full.end < self.end)?;
        (self.digits.len, self.groups.len, self.end) = (full.num_digits, full.num_groups, full.end);
        self.separators.len = full.num_groups.saturating_sub(1);
        Some(self)
    }

    /// Digits at the start, at most one more than a phone number may have.
    fn take_group(&mut self, bytes: &[u8]) -> usize {
        let room = MAX_DIGITS + 1 - self.digits.len;
        let group = bytes.iter().take(room).take_while(|b| b.is_ascii_digit()).count();
        bytes[..group].iter().for_each(|digit| self.digits.push(*digit));
        if group > 0 {
            self.groups.push(group as u8);
        }
        group
    }

    /// Whether more text may make it one; wrong only in keeping text waiting.
    fn may_be_phone(&self) -> bool {
        let begins = self.has_plus || self.has_parenthesis || self.digits.first() == Some(&b'0');
        begins || self.may_be_grouped() || self.up_to_full().is_some_and(|full| full.is_phone())
    }

    fn is_phone(&self) -> bool {
        let count = self.digits.len();
        if count > MAX_DIGITS {
            return false;
        }
        match *self.digits {
            [b'1'..=b'9', ..] if self.has_plus => count >= if self.separators.is_empty() { 9 } else { 8 },
            [b'0', b'0', b'1'..=b'9', ..] => count >= 10 && !self.separators.is_empty(),
            [b'0', b'1'..=b'9', ..] => self.is_national(),
            _ => !self.has_plus && (self.is_american() || self.is_chinese()),
        }
    }

    /// Nine to twelve digits, the first group an area code, one kind of separator behind it; no date.
    fn is_national(&self) -> bool {
        let Some((first, rest)) = self.groups.split_first() else { return false };
        let is_even = self.separators.iter().skip(1).all(|s| s == self.separators.last().unwrap_or(s));
        (MIN_PLAIN_DIGITS..=12).contains(&self.digits.len())
            && (2..=5).contains(first)
            && !rest.is_empty()
            && is_even
            && !matches!(*self.groups, [2, 2, 4, ..])
    }

    /// `(415) 555-2671`, `415-555-2671`, `415.555.2671`, each with an optional `1` in front.
    fn is_american(&self) -> bool {
        let (lead, groups) = match *self.groups {
            [1, ref groups @ ..] if self.digits[0] == b'1' => (1, groups),
            ref groups => (0, groups),
        };
        let is_spaced = self.separators.iter().all(|s| *s == b' ');
        matches!(groups, [3, 3, 4])
            && (self.has_parenthesis || !is_spaced)
            && self.digits[lead] >= b'2'
            && self.digits[lead + 3] >= b'2'
    }

    /// A mobile number in the usual groups: `138 0013 8000`, `138-0013-8000`.
    fn is_chinese(&self) -> bool {
        let is_even = matches!(*self.separators, [a, b] if a == b && b" -".contains(&a));
        matches!(*self.groups, [3, 4, 4]) && self.digits[0] == b'1' && self.digits[1] >= b'3' && is_even
    }

    /// Whether the groups so far are the beginning of 3-3-4 or 3-4-4, the last one perhaps still growing.
    fn may_be_grouped(&self) -> bool {
        let begins = |groups: &[u8], whole: [u8; 3]| match groups.split_last() {
            None => true,
            Some((last, before)) => before.len() < 3 && whole.starts_with(before) && *last <= whole[before.len()],
        };
        let has_lead = self.groups.first() == Some(&1) && self.digits[0] == b'1';
        begins(&self.groups, [3, 3, 4])
            || begins(&self.groups, [3, 4, 4])
            || (has_lead && begins(&self.groups[1..], [3, 3, 4]))
    }
}

/// Bytes between two groups: one of ` -./`, or parentheses around a group with spaces beside them. All of a text that has no
/// others and no parenthesis yet.
fn separator(text: &[u8]) -> usize {
    const MOST: usize = 3;
    let fits = |b: &&u8| matches!(b, b' ' | b'-' | b'.' | b'/' | b'(' | b')');
    let len = text.iter().take(MOST).take_while(fits).count();
    let has_parenthesis = text[..len].iter().any(|b| matches!(b, b'(' | b')'));
    let may_have = len == text.len() && len < MOST;
    if has_parenthesis || may_have { len } else { len.min(1) }
}

#[cfg(test)]
mod tests {
    use crate::detect::Kind;
    use crate::detect::tests::found;

    #[test]
    fn numbers_in_the_common_formats_are_found() {
        let phones = [
            "+49 30 1234567",
            "+493012345678",
            "+1 (415) 555-2671",
            "+1-415-555-2671",
            "+44 20 7946 0958",
            "+33 6 12 34 56 78",
            "+49 (0)30 1234567",
            "0049 30 1234567",
            "0049 30 23125 111",
            "(415) 555-2671",
            "(415)555-2671",
            "415-555-2671",
            "415.555.2671",
            "1-800-555-0199",
            "030 1234567",
            "030/1234567",
            "07911 123456",
            "01 23 45 67 89",
            "06-12345678",
            "0201/123 456",
            "+90 532 123 45 67",
            "+380 50 123 45 67",
            "+43 664 123 45 67",
            "+998 90 123 45 67",
            "+49 151 234 567 89",
            "0151 234 567 89",
            "0090 532 123 45 67",
            "0049 151 234 567 89",
            "138 0013 8000",
            "138-0013-8000",
        ];
        for phone in phones {
            assert_eq!(found(Kind::Phone, &format!("Call {phone}, please.")), [phone]);
            assert_eq!(found(Kind::Phone, phone), [phone]);
        }
        for (first, second) in [("0049 30 1234", "030 1234567"), ("0049 30 12345", "030-1234567")] {
            assert_eq!(found(Kind::Phone, &format!("{first} {second}")), [first, second]);
        }
        for (first, second) in [("+33 6 12 34 56 78", "01 23 45 67 89"), ("01 23 45 67 89", "06-12-34-56-78")] {
            assert_eq!(found(Kind::Phone, &format!("{first} {second}")), [first, second]);
        }
        for (first, second) in [("030/123456", "78"), ("03-1234-5678", "03-1234-5679"), ("+49 30 1234567", "7654321")] {
            assert_eq!(found(Kind::Phone, &format!("{first}/{second}")).len(), 1, "{first}/{second}");
        }
        for before in ["tel:", "Tel.", "fax/", "-", "..."] {
            assert_eq!(found(Kind::Phone, &format!("{before}+4930123456.")), ["+4930123456"], "{before}");
        }
    }

    #[test]
    fn a_number_that_is_whole_is_found_whatever_follows_it() {
        for (phone, behind) in [
            ("+1 415 555 2671", "10 times"),
            ("+49 151 234 567", "1000 times"),
            ("+49 151 234 567", "10th"),
            ("+49 151 234 567", "12.05.2024"),
            ("0151-234-567", "89"),
            ("01 23 45 67 89", "12 12 of them"),
        ] {
            let text = format!("{phone} {behind}");
            assert_eq!(found(Kind::Phone, &text), [phone], "{text}");
        }
    }

    #[test]
    fn dates_amounts_and_plain_numbers_are_left_alone() {
        let others = [
            "2024-05-17",
            "17.05.2024",
            "01.02.2024",
            "01-02-2024 10",
            "05/06/2024 1200",
            "12:30",
            "1234567890",
            "+12345",
            "+1 234 567",
            "3.141592653",
            "0.123456789",
            "200 300 4000",
            "415 555 2671",
            "192.168.100.200",
            "10.0.0.1",
            "1-2-3",
            "(2024)",
            "(1) 2 3",
            "ISBN 978-3-16-148410-0",
            "0123456789",
            "07911123456",
            "0151123456789",
            "4155552671",
            "13800138000",
            "415-555-2671x89",
            "123-45-6789",
            "1,000,000,000",
            "v0.1.2-rc.10",
            "+1234567890123456",
            "115-555-2671",
            "118 0013 8000",
            "138 0013-8000",
            "138.0013.8000",
            "238 0013 8000",
            "x030 1234567",
            "a/030 1234567",
            "1++4930123456",
        ];
        for text in others {
            assert_eq!(found(Kind::Phone, text), [""; 0], "{text}");
        }
    }
}
