//! Which of the held writes behind the first one a look asks for.
//!
//! Owns the order. Does not own the question (`held`). Invariant: a look asks for a bounded number, and each write has its turn.

use std::collections::VecDeque;

/// What becomes of a write behind the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Stays, which took no time to find out.
    NotAsked,
    Stays,
    Goes,
}

/// Asks for `writes` behind the first one, each at most once, and takes those out that go: from the one at the place `next` on, where the
/// next look goes on, round the end, until `asks_max` were asked for.
pub(super) fn take_some<T>(
    writes: &mut VecDeque<T>,
    next: &mut usize,
    asks_max: usize,
    mut ask: impl FnMut(&mut T) -> Answer,
) {
    let mut asked = 0;
    for _ in 1..writes.len() {
        if asked == asks_max {
            return;
        }
        if !(1..writes.len()).contains(next) {
            *next = 1;
        }
        let Some(write) = writes.get_mut(*next) else { return };
        let answer = ask(write);
        asked += usize::from(answer != Answer::NotAsked);
        if answer == Answer::Goes {
            writes.remove(*next);
        } else {
            *next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKS_MAX: usize = 64;

    #[test]
    fn a_look_asks_for_a_bounded_number_of_writes_and_all_have_their_turn() {
        let mut writes: VecDeque<u32> = (0..1000).collect();
        let (mut next, mut looks, mut asked) = (1, 0, Vec::new());
        while asked.len() < 999 {
            let before = asked.len();
            take_some(&mut writes, &mut next, ASKS_MAX, |write| {
                asked.push(*write);
                Answer::Stays
            });
            assert!((1..=ASKS_MAX).contains(&(asked.len() - before)));
            looks += 1;
        }
        assert_eq!(looks, 999_usize.div_ceil(ASKS_MAX));
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), 999, "each but the first was asked for");
    }

    #[test]
    fn writes_that_may_go_leave_and_the_first_stays() {
        let mut writes: VecDeque<u32> = (0..10).collect();
        let mut next = 7;
        let (mut asked, mut gone) = (0, Vec::new());
        take_some(&mut writes, &mut next, 4, |write| match *write % 3 {
            0 => Answer::NotAsked,
            1 => {
                asked += 1;
                gone.push(*write);
                Answer::Goes
            }
            _ => {
                asked += 1;
                Answer::Stays
            }
        });
        assert_eq!((asked, &gone[..], next), (4, &[7, 1][..], 2), "7, 8, 1 and 2 were asked for");
        assert_eq!(writes, [0, 2, 3, 4, 5, 6, 8, 9]);
        let mut looked_at = 0;
        take_some(&mut writes, &mut next, 4, |_| {
            looked_at += 1;
            Answer::NotAsked
        });
        assert_eq!(looked_at, 7, "nobody was asked for, so all but the first were looked at");
        take_some(&mut VecDeque::from([1]), &mut next, 4, |_| unreachable!("only the first is there"));
        take_some(&mut writes, &mut next, 100, |_| Answer::Goes);
        assert_eq!(writes, [0]);
    }
}
