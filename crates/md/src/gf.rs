//! The field GF(2^8) of RAID 6, modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), with the generator 2.
//!
//! Source: H. P. Anvin, "The mathematics of RAID-6". Knows nothing of arrays.

/// The polynomial without its highest power.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator repeat after this many.
pub(crate) const ORDER: usize = 255;

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

const fn logarithms() -> [u8; 256] {
    let mut logarithms = [0; 256];
    let mut power = 0;
    while power < ORDER {
        logarithms[POWERS[power] as usize] = power as u8;
        power += 1;
    }
    logarithms
}

/// The generator to this power.
pub(crate) fn power(exponent: usize) -> u8 {
    POWERS[exponent % ORDER]
}

/// The product of two numbers.
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[usize::from(LOGARITHMS[usize::from(a)]) + usize::from(LOGARITHMS[usize::from(b)])]
}

/// What times `a` is 1; 0 has none.
pub(crate) fn inverse(a: u8) -> Option<u8> {
    (a != 0).then(|| POWERS[ORDER - usize::from(LOGARITHMS[usize::from(a)])])
}

/// Adds `factor` times `from` to `to`, byte by byte. Only as many bytes count as both have.
pub(crate) fn add_multiple(to: &mut [u8], from: &[u8], factor: u8) {
    if factor == 1 {
        return add(to, from);
    }
    let table: [u8; 256] = std::array::from_fn(|byte| multiply(byte as u8, factor));
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= table[usize::from(*from)]);
}

/// Adds `from` to `to`, byte by byte: that is XOR.
pub(crate) fn add(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// Multiplies all bytes by `factor`.
pub(crate) fn scale(bytes: &mut [u8], factor: u8) {
    let table: [u8; 256] = std::array::from_fn(|byte| multiply(byte as u8, factor));
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
        assert_eq!([0, 1, 7, 8, 9, 10, 12].map(power), [1, 2, 0x80, 0x1d, 0x3a, 0x74, 0xcd]);
        assert_eq!(power(255), 1);
    }

    #[test]
    fn all_products_and_inverses_are_right() {
        for a in 0..=255_u8 {
            for b in 0..=255_u8 {
                assert_eq!(u16::from(multiply(a, b)), product(a.into(), b.into()), "{a} times {b}");
            }
            assert_eq!(inverse(a).map(|inverse| multiply(a, inverse)), (a != 0).then_some(1), "{a}");
        }
    }

    #[test]
    fn bytes_are_multiplied_one_by_one() {
        let mut sum = [1, 2, 3];
        add_multiple(&mut sum, &[0x80, 0, 1], 2);
        assert_eq!(sum, [1 ^ 0x1d, 2, 1]);
        scale(&mut sum, 2);
        assert_eq!(sum, [0x38, 4, 2]);
    }
}
