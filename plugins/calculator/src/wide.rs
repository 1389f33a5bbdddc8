//! Whole numbers of up to 256 bits, as far as a remainder needs them: the numerators of two fractions over a common
//! denominator may have twice the bits of each.

use std::cmp::Ordering;

/// A number, its upper half first, so that the order is that of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wide {
    high: u128,
    low: u128,
}

impl Wide {
    /// The product of two numbers.
    pub fn product(a: u128, b: u128) -> Self {
        const LOW: u128 = u64::MAX as u128;
        let (a1, a0, b1, b0) = (a >> 64, a & LOW, b >> 64, b & LOW);
        // None of the sums is more than 128 bits: a product of halves leaves room for two halves.
        let low = a0 * b0;
        let middle = a1 * b0 + (low >> 64);
        let other = a0 * b1 + (middle & LOW);
        Self { high: a1 * b1 + (middle >> 64) + (other >> 64), low: (other << 64) | (low & LOW) }
    }

    /// What a division by `divisor` leaves. The divisor is neither zero nor of more than 255 bits.
    pub fn remainder(self, divisor: Self) -> Self {
        let mut rest = Self { high: 0, low: 0 };
        for at in (0..256).rev() {
            let part = if at < 128 { self.low >> at } else { self.high >> (at - 128) };
            rest = Self { high: (rest.high << 1) | (rest.low >> 127), low: (rest.low << 1) | (part & 1) };
            if rest.cmp(&divisor) != Ordering::Less {
                rest = rest.minus(divisor);
            }
        }
        rest
    }

    /// The difference to a number that is not larger.
    pub fn minus(self, other: Self) -> Self {
        let (low, borrows) = self.low.overflowing_sub(other.low);
        Self { high: self.high.wrapping_sub(other.high).wrapping_sub(borrows.into()), low }
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.high == 0 && self.low == 0
    }

    /// The same, where it fits.
    pub fn narrow(self) -> Option<i128> {
        if self.high == 0 { self.low.try_into().ok() } else { None }
    }

    /// The nearest double, or one beside it.
    pub fn to_f64(self) -> f64 {
        self.high as f64 * 2f64.powi(128) + self.low as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn products_have_all_their_bits() {
        assert_eq!(Wide::product(u128::MAX, u128::MAX), Wide { high: u128::MAX - 1, low: 1 });
        assert_eq!(Wide::product(u128::MAX, 2), Wide { high: 1, low: u128::MAX - 1 });
    }

    proptest! {
        #[test]
        fn a_product_and_a_rest_leave_the_rest(a in 1..u128::MAX >> 1, b in 1..u128::MAX >> 1, rest in 0..u128::MAX) {
            let (product, rest) = (Wide::product(a, b), rest % a.min(b));
            let (low, carries) = product.low.overflowing_add(rest);
            let sum = Wide { high: product.high + u128::from(carries), low };
            for divisor in [a, b] {
                prop_assert_eq!(sum.remainder(Wide { high: 0, low: divisor }).narrow(), i128::try_from(rest).ok());
            }
            prop_assert_eq!(sum.remainder(product), Wide { high: 0, low: rest });
            prop_assert_eq!(sum.minus(product), Wide { high: 0, low: rest });
        }
    }
}
