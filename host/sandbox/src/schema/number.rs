//! Bounds of numbers: exact for integers of 64 bits, and `multipleOf` in decimal, where 0.3 is three times 0.1.

use serde_json::Number;
use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Minimum,
    Maximum,
    ExclusiveMinimum,
    ExclusiveMaximum,
    MultipleOf,
}

impl Bound {
    pub(super) fn named(keyword: &str) -> Option<Self> {
        Some(match keyword {
            "minimum" => Self::Minimum,
            "maximum" => Self::Maximum,
            "exclusiveMinimum" => Self::ExclusiveMinimum,
            "exclusiveMaximum" => Self::ExclusiveMaximum,
            "multipleOf" => Self::MultipleOf,
            _ => return None,
        })
    }

    pub(super) fn holds(self, number: &Number, bound: &Number) -> bool {
        let order = compare(number, bound);
        match self {
            Self::Minimum => order.is_some_and(Ordering::is_ge),
            Self::Maximum => order.is_some_and(Ordering::is_le),
            Self::ExclusiveMinimum => order.is_some_and(Ordering::is_gt),
            Self::ExclusiveMaximum => order.is_some_and(Ordering::is_lt),
            Self::MultipleOf => is_multiple(number, bound),
        }
    }

    /// What a number should be, before the bound itself.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Minimum => "at least",
            Self::Maximum => "at most",
            Self::ExclusiveMinimum => "more than",
            Self::ExclusiveMaximum => "less than",
            Self::MultipleOf => "a multiple of",
        }
    }
}

fn compare(a: &Number, b: &Number) -> Option<Ordering> {
    match (a.as_i128(), b.as_i128()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn is_multiple(number: &Number, of: &Number) -> bool {
    if let Some((number, of)) = decimal(number).zip(decimal(of)).and_then(|(a, b)| scaled(a, b)) {
        return of != 0 && number % of == 0;
    }
    // Too far apart for 128 bits: as floats, which is what such numbers are.
    match (number.as_f64(), of.as_f64()) {
        (Some(number), Some(of)) => of != 0.0 && number % of == 0.0,
        _ => false,
    }
}

/// Digits, and the power of ten that they are to be multiplied by.
type Decimal = (i128, i32);

/// As a number is written: the shortest text that is read as the same float.
fn decimal(number: &Number) -> Option<Decimal> {
    let text = number.to_string();
    let (digits, power) = match text.split_once(['e', 'E']) {
        Some((digits, power)) => (digits, power.parse::<i32>().ok()?),
        None => (text.as_str(), 0),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = format!("{whole}{part}").parse().ok()?;
    Some((digits, power.checked_sub(i32::try_from(part.len()).ok()?)?))
}

/// Both with the same power of ten, which is left out.
fn scaled((a, a_power): Decimal, (b, b_power): Decimal) -> Option<(i128, i128)> {
    let least = a_power.min(b_power);
    let at_least = |digits: i128, power: i32| {
        let up = u32::try_from(power.checked_sub(least)?).ok()?;
        digits.checked_mul(10i128.checked_pow(up)?)
    };
    Some((at_least(a, a_power)?, at_least(b, b_power)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn integers_are_compared_exactly() {
        let (least, most) = (number("9007199254740993"), number("18446744073709551615"));
        assert!(!Bound::Minimum.holds(&number("9007199254740992"), &least));
        assert!(Bound::Minimum.holds(&least, &least) && !Bound::ExclusiveMinimum.holds(&least, &least));
        assert!(Bound::Maximum.holds(&least, &most) && !Bound::ExclusiveMaximum.holds(&most, &most));
        assert!(Bound::Minimum.holds(&number("0.5"), &number("0")));
    }

    #[test]
    fn multiples_are_counted_in_decimal() {
        for (value, of, expected) in [
            ("9", "3", true),
            ("10", "3", false),
            ("0.3", "0.1", true),
            ("19.99", "0.01", true),
            ("0.35", "0.1", false),
            ("-4.5", "1.5", true),
            ("0", "7", true),
            ("1e30", "1e-5", true),
            ("1e300", "2", true),
            ("1.5", "1e300", false),
            ("12e2", "5e1", true),
        ] {
            assert_eq!(Bound::MultipleOf.holds(&number(value), &number(of)), expected, "{value} of {of}");
        }
    }
}
