//! The field GF(2^8) of RAID 6, modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), with the generator 2.
//!
//! Source: H. P. Anvin, "The mathematics of RAID-6". Knows nothing of arrays.

/// The polynomial without its highest power.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator repeat after this many.
pub const ORDER: usize = 255;

/// The powers of 2, twice over, so that a sum of two logarithms needs no remainder.
const POWERS: [u8; 2 * ORDER] = powers();

/// The logarithm of each number but 0.
const LOGARITHMS: [u8; 256] = logarithms();

const fn powers() -> [u8; 2 * ORDER] {
    let mut powers = [1; 2 * ORDER];
    let mut index = 1;
    while index < powers.len() {
        let last = powers[index - 1];
        powers[index] = (last << 1) ^ if last & 0x80 == 0 { 0 } else { POLYNOMIAL };
        index += 1;
    }
    powers
}

#[expect(clippy::cast_possible_truncation, reason = "a logarithm is below 255")]
const fn logarithms() -> [u8; 256] {
    let mut logarithms = [0; 256];
    let mut power = 0;
    while power < ORDER {
        logarithms[POWERS[power] as usize] = power as u8;
        power += 1;
    }
    logarithms
}

/// A number of the field, which bytes are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Factor(pub u8);

impl Factor {
    /// What leaves nothing of a byte.
    pub const ZERO: Self = Self(0);
    /// What leaves a byte as it is: XOR alone.
    pub const ONE: Self = Self(1);

    /// The generator to this power.
    #[must_use]
    pub const fn power(exponent: usize) -> Self {
        Self(POWERS[exponent % ORDER])
    }

    /// The sum of two numbers, which is their difference, too.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    /// The product of two numbers.
    #[must_use]
    pub const fn times(self, other: Self) -> Self {
        if self.0 == 0 || other.0 == 0 {
            return Self::ZERO;
        }
        Self(POWERS[LOGARITHMS[self.0 as usize] as usize + LOGARITHMS[other.0 as usize] as usize])
    }

    /// What times this is 1; zero has none.
    #[must_use]
    pub const fn inverse(self) -> Option<Self> {
        if self.0 == 0 { None } else { Some(Self(POWERS[ORDER - LOGARITHMS[self.0 as usize] as usize])) }
    }

    /// The products with all bytes.
    fn table(self) -> [u8; 256] {
        let mut table = [0; 256];
        (0..=255).zip(&mut table).for_each(|(byte, product)| *product = Self(byte).times(self).0);
        table
    }
}

/// Adds `factor` times `from` to `to`, byte by byte. Only as many bytes count as both have.
pub fn add_multiple(to: &mut [u8], from: &[u8], factor: Factor) {
    if factor == Factor::ONE {
        return add(to, from);
    }
    let table = factor.table();
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= table[usize::from(*from)]);
}

/// Adds `from` to `to`, byte by byte: that is XOR. Only as many bytes count as both have.
pub fn add(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// Multiplies all bytes by `factor`.
pub fn scale(bytes: &mut [u8], factor: Factor) {
    if factor == Factor::ONE {
        return;
    }
    let table = factor.table();
    bytes.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on paper: shift, and subtract the polynomial.
    fn product(mut a: u16, mut b: u16) -> u16 {
        let mut product = 0;
        while b > 0 {
            if b & 1 == 1 {
                product ^= a;
            }
            a <<= 1;
            if a & 0x100 != 0 {
                a ^= 0x11d;
            }
            b >>= 1;
        }
        product
    }

    #[test]
    fn powers_are_those_of_the_paper() {
        // By hand: 2^8 = 0x11d - 0x100, doubled from there.
        assert_eq!([0, 1, 7, 8, 9, 10, 12].map(Factor::power), [1, 2, 0x80, 0x1d, 0x3a, 0x74, 0xcd].map(Factor));
        assert_eq!(Factor::power(255), Factor::ONE);
    }

    #[test]
    fn all_products_and_inverses_are_right() {
        for a in (0..=255).map(Factor) {
            for b in (0..=255).map(Factor) {
                assert_eq!(u16::from(a.times(b).0), product(a.0.into(), b.0.into()), "{a:?} times {b:?}");
            }
            let one = (a != Factor::ZERO).then_some(Factor::ONE);
            assert_eq!(a.inverse().map(|inverse| a.times(inverse)), one, "{a:?}");
        }
    }

    #[test]
    fn bytes_are_multiplied_one_by_one() {
        let mut sum = [1, 2, 3];
        add_multiple(&mut sum, &[0x80, 0, 1], Factor(2));
        assert_eq!(sum, [1 ^ 0x1d, 2, 1]);
        scale(&mut sum, Factor(2));
        assert_eq!(sum, [0x38, 4, 2]);
    }
}
