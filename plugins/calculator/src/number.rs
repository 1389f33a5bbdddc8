//! Numbers that stay exact while they can: a fraction of two 128-bit integers, then a double.
//!
//! Invariant: a fraction is in lowest terms with a positive denominator; a double is finite.

use crate::wide::Wide;
use std::cmp::Ordering;

/// A number.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// `num / den`, in lowest terms, `den > 0`.
    Exact {
        /// Numerator.
        num: i128,
        /// Denominator.
        den: i128,
    },
    /// A finite double.
    Real(f64),
}

use Number::{Exact, Real};

/// Doubles from here on (2^53) are not next to each other: whole numbers lie between.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// Exponents beyond this leave exact arithmetic.
const MAX_EXACT_EXPONENT: i128 = 4096;

impl Number {
    /// A whole number.
    pub fn whole(num: i128) -> Self {
        Exact { num, den: 1 }
    }

    /// A double, when it is finite.
    ///
    /// # Errors
    /// For infinities and what is not a number.
    pub fn real(value: f64) -> Result<Self, String> {
        if value.is_nan() {
            return Err("the result is not a real number".into());
        }
        if value.is_infinite() {
            return Err("the result is too large".into());
        }
        Ok(Real(value))
    }

    /// Digits with at most one point, as written in an expression, and behind them an exponent such as `e-3`, or nothing.
    ///
    /// # Errors
    /// When it is too large for a double.
    pub fn literal(digits: &str, exponent: &str) -> Result<Self, String> {
        exact_literal(digits, exponent).map_or_else(
            || {
                let text = format!("{digits}{exponent}");
                Self::real(text.parse().map_err(|_| format!("`{text}` is not a number"))?)
            },
            Ok,
        )
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Exact { num, den } => num as f64 / den as f64,
            Real(value) => value,
        }
    }

    fn is_zero(self) -> bool {
        matches!(self, Exact { num: 0, .. }) || matches!(self, Real(0.0))
    }

    /// The sum.
    ///
    /// # Errors
    /// When it is too large.
    pub fn plus(self, other: Self) -> Result<Self, String> {
        let exact = both(self, other).and_then(|(a, b, c, d)| {
            let num = a.checked_mul(d)?.checked_add(c.checked_mul(b)?)?;
            Some(ratio(num, b.checked_mul(d)?))
        });
        exact.map_or_else(|| Self::real(self.to_f64() + other.to_f64()), Ok)
    }

    /// The difference.
    ///
    /// # Errors
    /// When it is too large.
    pub fn minus(self, other: Self) -> Result<Self, String> {
        self.plus(other.negate())
    }

    /// The product.
    ///
    /// # Errors
    /// When it is too large.
    pub fn times(self, other: Self) -> Result<Self, String> {
        let exact = both(self, other).and_then(|(a, b, c, d)| {
            // Crosswise, so that the products are in lowest terms and overflow as late as possible.
            let (left, right) = (ratio(a, d), ratio(c, b));
            let (a, d, c, b) = both(left, right)?;
            Some(ratio(a.checked_mul(c)?, b.checked_mul(d)?))
        });
        exact.map_or_else(|| Self::real(self.to_f64() * other.to_f64()), Ok)
    }

    /// The quotient.
    ///
    /// # Errors
    /// For a divisor of zero, and when it is too large.
    pub fn over(self, other: Self) -> Result<Self, String> {
        if other.is_zero() {
            return Err("division by zero".into());
        }
        match other {
            Exact { num, den } if num != i128::MIN => self.times(ratio(den * num.signum(), num.abs())),
            _ => Self::real(self.to_f64() / other.to_f64()),
        }
    }

    /// What a division to the next lower whole number leaves; it has the divisor's sign.
    ///
    /// # Errors
    /// For a divisor of zero, and where a double has not the digits that a rest is made of.
    pub fn modulo(self, other: Self) -> Result<Self, String> {
        if other.is_zero() {
            return Err("division by zero".into());
        }
        if let Some((a, b, c, d)) = both(self, other) {
            return exact_modulo(a, b, c, d);
        }
        let (a, b) = (self.to_f64(), other.to_f64());
        if (a / b).abs() >= MAX_WHOLE || [self, other].iter().any(|x| matches!(x, Real(x) if x.abs() >= MAX_WHOLE)) {
            return Err(
                "the rest of numbers this large is not exact: `%` needs whole numbers and fractions of 128 bits, \
                        or decimals below 2^53"
                    .into(),
            );
        }
        let rest = a % b;
        Self::real(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest })
    }

    /// A power.
    ///
    /// # Errors
    /// For zero to a negative power, a negative number to a broken one, and when it is too large.
    pub fn power(self, exponent: Self) -> Result<Self, String> {
        if self.is_zero() && exponent.to_f64() < 0.0 {
            return Err("division by zero: zero to a negative power".into());
        }
        if let Exact { num, den: 1 } = exponent
            && num.abs() <= MAX_EXACT_EXPONENT
            && let Some(value) = self.exact_power(num)
        {
            return Ok(value);
        }
        Self::real(self.to_f64().powf(exponent.to_f64()))
    }

    fn exact_power(self, exponent: i128) -> Option<Self> {
        let Exact { num, den } = self else { return None };
        let times = u32::try_from(exponent.unsigned_abs()).ok()?;
        let (num, den) = (num.checked_pow(times)?, den.checked_pow(times)?);
        if exponent >= 0 {
            return Some(ratio(num, den));
        }
        Some(ratio(den.checked_mul(num.signum())?, num.checked_abs()?))
    }

    /// The negative.
    pub fn negate(self) -> Self {
        match self {
            Exact { num, den } => num.checked_neg().map_or(Real(-(num as f64) / den as f64), |num| Exact { num, den }),
            Real(value) => Real(-value),
        }
    }

    /// The absolute value.
    pub fn abs(self) -> Self {
        if self.to_f64() < 0.0 { self.negate() } else { self }
    }

    /// The square root, exact for squares.
    ///
    /// # Errors
    /// For negative numbers.
    pub fn sqrt(self) -> Result<Self, String> {
        if self.to_f64() < 0.0 {
            return Err("the square root of a negative number is not a real number".into());
        }
        if let Exact { num, den } = self
            && let (Some(num), Some(den)) = (whole_root(num), whole_root(den))
        {
            return Ok(Exact { num, den });
        }
        Self::real(self.to_f64().sqrt())
    }

    /// The next lower whole number.
    pub fn floor(self) -> Self {
        match self {
            Exact { num, den } => Self::whole(num.div_euclid(den)),
            Real(value) => Real(value.floor()),
        }
    }

    /// The next higher whole number.
    pub fn ceil(self) -> Self {
        self.negate().floor().negate()
    }

    /// The nearest whole number; halves go away from zero.
    pub fn round(self) -> Self {
        match self {
            Exact { num, den } => Self::whole(round_ratio(num, den)),
            Real(value) => Real(value.round()),
        }
    }

    /// Compares by size.
    pub fn compare(self, other: Self) -> Ordering {
        let exact = both(self, other).and_then(|(a, b, c, d)| Some(a.checked_mul(d)?.cmp(&c.checked_mul(b)?)));
        exact.unwrap_or_else(|| self.to_f64().total_cmp(&other.to_f64()))
    }

    /// As text: whole numbers in full, others rounded to `decimals` digits behind the point (a number below 1
    /// keeps that many digits from its first one on), very large and very small ones in scientific notation.
    pub fn to_decimal(self, decimals: u32) -> String {
        match self {
            Exact { num, den: 1 } => num.to_string(),
            Exact { num, den } => {
                let places = decimals + leading_zeros(self.to_f64());
                exact_decimal(num, den, places).unwrap_or_else(|| real_decimal(self.to_f64(), decimals))
            }
            Real(value) => real_decimal(value, decimals),
        }
    }
}

/// The rest of `a / b` by `c / d`, over a common denominator; a double only where its digits do not fit.
fn exact_modulo(a: i128, b: i128, c: i128, d: i128) -> Result<Number, String> {
    let [a_size, b_size, c_size, d_size] = [a, b, c, d].map(i128::unsigned_abs);
    let (b_rest, d_rest) = match ratio(b, d) {
        Exact { num, den } => (num.unsigned_abs(), den.unsigned_abs()),
        Real(_) => (b_size, d_size),
    };
    let divisor = Wide::product(c_size, b_rest);
    let mut rest = Wide::product(a_size, d_rest).remainder(divisor);
    if !rest.is_zero() && (a < 0) != (c < 0) {
        rest = divisor.minus(rest);
    }
    let common = Wide::product(b_size, d_rest);
    let value = match (rest.narrow(), common.narrow()) {
        (Some(rest), Some(common)) => ratio(rest, common),
        _ => Number::real(rest.to_f64() / common.to_f64())?,
    };
    Ok(if c < 0 { value.negate() } else { value })
}

/// `None` where it does not fit.
fn exact_literal(digits: &str, exponent: &str) -> Option<Number> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let num: i128 = format!("{whole}{fraction}").parse().ok()?;
    let shift: i64 = exponent.get(1..).filter(|shift| !shift.is_empty()).map_or(Some(0), |shift| shift.parse().ok())?;
    let shift = shift.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let scale = 10i128.checked_pow(u32::try_from(shift.unsigned_abs()).ok()?)?;
    Some(if shift < 0 { ratio(num, scale) } else { Number::whole(num.checked_mul(scale)?) })
}

fn both(a: Number, b: Number) -> Option<(i128, i128, i128, i128)> {
    match (a, b) {
        (Exact { num: a, den: b }, Exact { num: c, den: d }) => Some((a, b, c, d)),
        _ => None,
    }
}

/// `den` is positive.
fn ratio(num: i128, den: i128) -> Number {
    let (mut a, mut b) = (num.unsigned_abs(), den.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    match i128::try_from(a) {
        Ok(divisor) if divisor > 1 => Exact { num: num / divisor, den: den / divisor },
        _ => Exact { num, den },
    }
}

fn whole_root(square: i128) -> Option<i128> {
    let root = square.checked_isqrt()?;
    (root * root == square).then_some(root)
}

fn round_ratio(num: i128, den: i128) -> i128 {
    let (whole, rest) = (num / den, (num % den).unsigned_abs());
    // `rest < den`, so the difference does not wrap, and comparing it avoids doubling `rest`.
    if rest >= den.unsigned_abs() - rest { whole + num.signum() } else { whole }
}

/// Zeros between the point and the first digit.
fn leading_zeros(value: f64) -> u32 {
    let size = value.abs();
    if size == 0.0 || size >= 1.0 {
        return 0;
    }
    (-size.log10().floor() - 1.0).clamp(0.0, 400.0) as u32
}

fn exact_decimal(num: i128, den: i128, places: u32) -> Option<String> {
    let scale = 10i128.checked_pow(places)?;
    let scaled = round_ratio(num.checked_mul(scale)?, den);
    let (whole, fraction) =
        (scaled.unsigned_abs() / scale.unsigned_abs(), scaled.unsigned_abs() % scale.unsigned_abs());
    let sign = if scaled < 0 { "-" } else { "" };
    let text = format!("{sign}{whole}.{fraction:0width$}", width = places as usize);
    Some(if places == 0 { format!("{sign}{whole}") } else { trim(&text) })
}

fn real_decimal(value: f64, decimals: u32) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-9..1e15).contains(&size) {
        let text = format!("{value:.*e}", decimals.max(1) as usize);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", trim(mantissa));
    }
    let places = decimals + leading_zeros(value);
    let text = format!("{value:.*}", places as usize);
    let text = if places == 0 { text } else { trim(&text) };
    if text == "-0" { "0".into() } else { text }
}

fn trim(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').into()
}
