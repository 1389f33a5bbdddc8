//! A number of JSON by its value, however it is written.

use std::cmp::Ordering;
use std::fmt;

/// A number: whole ones exactly, as far as 128 bits go, however they are written; others as doubles.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// Of every number that is whole and within 128 bits, so that two which are equal to a third are equal.
    whole: Option<i128>,
    float: f64,
}

impl Number {
    /// The number that a text of JSON says, if it is not too large for a double.
    pub fn read(text: &str) -> Option<Self> {
        let float: f64 = text.parse().ok().filter(|float: &f64| float.is_finite())?;
        // Below 2^127 in size, which is a double itself, a whole double is an `i128` too.
        let rounded = || (float.fract() == 0.0 && float.abs() < -(i128::MIN as f64)).then_some(float as i128);
        Some(Self { whole: whole(text).or_else(rounded), float })
    }

    /// Bytes that are the same for equal numbers, and as many for any.
    pub(crate) fn form(self) -> [u8; 17] {
        let (kind, bits) = self.whole.map_or((0, self.float.to_bits().into()), |whole| (1, whole as u128));
        let mut form = [kind; 17];
        form[1..].copy_from_slice(&bits.to_be_bytes());
        form
    }

    /// Whether it has no fraction: `2.0` is whole in JSON Schema.
    pub fn is_whole(self) -> bool {
        self.whole.is_some() || (self.float.fract() == 0.0 && self.float.is_finite())
    }

    /// Exact between whole numbers.
    pub fn compare(self, other: Self) -> Ordering {
        match (self.whole, other.whole) {
            (Some(a), Some(b)) => a.cmp(&b),
            // None is NaN.
            _ => self.float.partial_cmp(&other.float).unwrap_or(Ordering::Equal),
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self.whole, other.whole) {
            (Some(a), Some(b)) => a == b,
            (None, None) => self.float == other.float,
            // One has a fraction, or is too large to be the other.
            _ => false,
        }
    }
}

/// The whole number that a text says, however it says it: `20`, `20.0`, `2e1` and `200e-1` are one.
fn whole(text: &str) -> Option<i128> {
    if let Ok(whole) = text.parse() {
        return Some(whole);
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (before, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{before}{fraction}");
    let without_zeros = digits.trim_end_matches('0');
    if matches!(without_zeros, "" | "-") {
        return Some(0);
    }
    let moved = exponent.parse::<i64>().ok()?.checked_sub(fraction.len() as i64)?;
    let num_zeros = moved.checked_add((digits.len() - without_zeros.len()) as i64)?;
    let power = 10_i128.checked_pow(u32::try_from(num_zeros).ok()?)?;
    without_zeros.parse::<i128>().ok()?.checked_mul(power)
}

impl From<usize> for Number {
    fn from(value: usize) -> Self {
        Self { whole: i128::try_from(value).ok(), float: value as f64 }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.whole {
            Some(whole) => write!(f, "{whole}"),
            None => write!(f, "{}", self.float),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_where_they_are_whole() {
        let number = |text: &str| Number::read(text).unwrap();
        assert_ne!(number("9007199254740993"), number("9007199254740992"));
        assert_eq!(number("1.0"), number("1"));
        // The largest that is, and two that are beyond it.
        let most = i128::MAX.to_string();
        assert_ne!(number(&most), number(&format!("{}6", &most[..most.len() - 1])));
        assert_eq!(number(&format!("{most}1")), number(&format!("{most}2")));
        assert!(number("1e3").is_whole() && !number("1.5").is_whole());
        for same in ["20", "20.0", "2e1", "2E+1", "200e-1", "0.2e2", "0.020e3", "20.00000000000000000000000001"] {
            assert_eq!(number(same), number("20"), "{same}");
        }
        for zero in ["0", "-0", "0.0", "-0.0e5", "0e-9", "0e99999999999999999999", "1e-99999999999999999999"] {
            assert_eq!(number(zero), number("0"), "{zero}");
        }
        for other in ["2", "-20", "20.5", "2e2", "2e-1"] {
            assert_ne!(number(other), number("20"), "{other}");
        }
        assert_eq!(number("9007199254740993.0"), number("9007199254740993"));
        assert_eq!(number("1e23"), number("100000000000000000000000"), "no double is that");
    }

    /// Without that no order would have equal ones side by side.
    #[test]
    fn numbers_that_are_equal_to_a_third_are_equal() {
        let texts = [
            "9007199254740992",
            "9007199254740993",
            "9007199254740992.0",
            "9007199254740992.5",
            "9007199254740993e0",
            "9007199254740994",
            "1e23",
            "99999999999999991611392",
            "100000000000000000000000",
            "0.1",
            "0.10",
            "1e-1",
            "-0",
            "0",
            "170141183460469231731687303715884105727",
            "170141183460469231731687303715884105728",
            "1.7014118346046923e38",
        ];
        let numbers = texts.map(|text| Number::read(text).unwrap());
        for a in numbers {
            for b in numbers {
                assert_eq!(a == b, a.form() == b.form(), "{a} and {b}");
            }
        }
    }
}
