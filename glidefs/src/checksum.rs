//! CRC-32C of all that the daemon writes.
//!
//! Owns the choice of the library. Does not own which bytes have a checksum, nor where the checksum is kept. Invariant: nothing is
//! allocated, so a request may compute one.

/// CRC-32C of `bytes`, by the instructions of this CPU that the library prefers.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// CRC-32C bit by bit, as its polynomial says.
    fn reference(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |remainder, byte| {
            (0..8).fold(remainder ^ u32::from(*byte), |remainder: u32, _| {
                (remainder >> 1) ^ if remainder & 1 == 1 { 0x82F6_3B78 } else { 0 }
            })
        })
    }

    proptest! {
        #[test]
        fn bytes_of_any_length_at_any_place_have_the_checksum_of_the_polynomial(
            bytes in proptest::collection::vec(any::<u8>(), 10_000 + 16),
            length in 0..10_000_usize,
            offset in 0..16_usize,
        ) {
            let bytes = &bytes[offset..offset + length];
            prop_assert_eq!(crc32c(bytes), reference(bytes));
        }
    }

    #[test]
    fn lengths_around_words_lanes_and_frames_have_the_checksum_of_the_polynomial() {
        let bytes: Vec<u8> = (0..12_300_u32).map(|at| at.wrapping_mul(1_664_525).to_be_bytes()[0]).collect();
        let lengths = [128, 256, 512, 1024, 1360, 2720, 4080, 4096, 8160, 8192, 12_240];
        for length in (0..64).chain(lengths.iter().flat_map(|length| length - 9..length + 9)) {
            assert_eq!(crc32c(&bytes[..length]), reference(&bytes[..length]), "of {length} bytes");
        }
    }

    #[test]
    fn published_checksums_are_known() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xff; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&[]), 0);
    }
}
