//! Which device numbers are in use.
//!
//! Owns the choice of a number for a new export. An existing export keeps its number, also while detached, so that
//! `/dev/ublkbN` stays the same disk. Numbers of deleted exports are used again, lowest first.

use std::collections::BTreeMap;

/// The numbers in use, each with the number of exports that use the number. More than one export can: the kernel may give a
/// device another number than requested, which a detached export has already.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    used: BTreeMap<u32, u32>,
    /// No number below this is free.
    free_from: u32,
}

impl Numbers {
    /// Takes the lowest free number.
    pub fn take_lowest(&mut self) -> u32 {
        let mut number = self.free_from;
        while self.used.contains_key(&number) {
            number += 1;
        }
        self.take(number);
        self.free_from = number;
        number
    }

    /// Adds a user of `number`.
    pub fn take(&mut self, number: u32) {
        *self.used.entry(number).or_default() += 1;
    }

    /// Removes a user of `number`.
    pub fn release(&mut self, number: u32) {
        if let Some(users) = self.used.get_mut(&number) {
            *users -= 1;
            if *users == 0 {
                self.used.remove(&number);
                self.free_from = self.free_from.min(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lowest_number_that_nobody_uses_is_taken(steps in prop::collection::vec((0_u8..3, 0_u32..8), 0..64)) {
            let mut numbers = Numbers::default();
            let mut model: Vec<u32> = Vec::new();
            for (step, number) in steps {
                match step {
                    0 => {
                        let lowest = (0..=64).find(|n| !model.contains(n)).unwrap();
                        prop_assert_eq!(numbers.take_lowest(), lowest);
                        model.push(lowest);
                    }
                    1 => {
                        numbers.take(number);
                        model.push(number);
                    }
                    _ => {
                        numbers.release(number);
                        if let Some(at) = model.iter().position(|&n| n == number) {
                            model.swap_remove(at);
                        }
                    }
                }
            }
        }
    }
}
