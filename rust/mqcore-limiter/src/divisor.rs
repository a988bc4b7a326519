//! Exact repeated division by the same number, without a division instruction.

/// A divisor with its reciprocal, so that division becomes multiplication: 10 cycles instead of 100 for a 128-bit dividend.
/// The algorithm is from Möller and Granlund, "Improved division by invariant integers".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Divisor {
    number: u64,
    /// `(2^128 - 1) / d - 2^64`, where `d` is the number shifted left until its highest bit is set; 0 for the number 0.
    reciprocal: u64,
}

impl Divisor {
    pub(crate) const fn new(number: u64) -> Self {
        let reciprocal = match number {
            0 => 0,
            // The cast drops the highest bit, which is always set.
            number => (u128::MAX / (number << number.leading_zeros()) as u128) as u64,
        };
        Self { number, reciprocal }
    }

    #[inline]
    pub(crate) const fn number(self) -> u64 {
        self.number
    }

    /// Returns the quotient and whether there is a remainder, or `None` if the number is 0 or the quotient exceeds 64 bits.
    #[inline]
    const fn divide(self, dividend: u128) -> Option<(u64, bool)> {
        // This includes a divisor of 0.
        if (dividend >> 64) as u64 >= self.number {
            return None;
        }
        let shift = self.number.leading_zeros();
        let divisor = self.number << shift;
        let dividend = dividend << shift;
        let (high, low) = ((dividend >> 64) as u64, dividend as u64);
        let estimate = (self.reciprocal as u128 * high as u128).wrapping_add(dividend);
        let mut quotient = ((estimate >> 64) as u64).wrapping_add(1);
        let mut remainder = low.wrapping_sub(quotient.wrapping_mul(divisor));
        // The estimate is one too large in about half of all cases, which the remainder reveals, and too small almost never.
        if remainder > estimate as u64 {
            quotient = quotient.wrapping_sub(1);
            remainder = remainder.wrapping_add(divisor);
        }
        if remainder >= divisor {
            quotient += 1;
            remainder -= divisor;
        }
        Some((quotient, remainder > 0))
    }

    /// `dividend / number` rounded down, saturated at `u64::MAX`, also for the number 0.
    #[inline]
    pub(crate) const fn floor(self, dividend: u128) -> u64 {
        match self.divide(dividend) {
            Some((quotient, _)) => quotient,
            None => u64::MAX,
        }
    }

    /// `dividend / number` rounded up, saturated at `u64::MAX`, also for the number 0.
    #[inline]
    pub(crate) const fn ceil(self, dividend: u128) -> u64 {
        match self.divide(dividend) {
            Some((quotient, rest)) => quotient.saturating_add(rest as u64),
            None => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = u64> {
        let near_a_power = (0_u32..64, 0_u64..3).prop_map(|(bit, less)| (1_u64 << bit).wrapping_sub(less));
        prop_oneof![
            0_u64..20,
            any::<u64>(),
            near_a_power,
            (0_u32..64, any::<u64>()).prop_map(|(bits, any)| any >> bits)
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(mqcore_testkit::by_depth(2_000, 20_000)))]

        #[test]
        fn divisor_agrees_with_plain_division(number_ in number(), high in number(), low in number()) {
            let divisor = Divisor::new(number_);
            let products = [
                u128::from(high) << 64 | u128::from(low),
                u128::from(high) * u128::from(low),
                (u128::from(number_) * u128::from(high)).wrapping_sub(1),
                u128::from(number_) * u128::from(high),
            ];
            for dividend in products {
                let clamp = |quotient: Option<u128>| quotient.and_then(|known| u64::try_from(known).ok()).unwrap_or(u64::MAX);
                prop_assert_eq!(divisor.floor(dividend), clamp(dividend.checked_div(number_.into())));
                let up = (number_ > 0).then(|| dividend.div_ceil(number_.into()));
                prop_assert_eq!(divisor.ceil(dividend), clamp(up), "{} / {}", dividend, number_);
            }
        }
    }
}
