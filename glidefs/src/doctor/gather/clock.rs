//! Whether a time service keeps the clock.

use std::mem::MaybeUninit;

/// Whether the kernel counts the clock as kept by a time service; `None` where the kernel does not tell.
pub(super) fn is_kept() -> Option<bool> {
    let mut clock = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: `clock` is a valid `timex` of zeroes, which asks for the state and changes nothing; the kernel writes the state there.
    let state = unsafe { libc::adjtimex(clock.as_mut_ptr()) };
    (state >= 0).then_some(state != libc::TIME_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_may_always_be_asked_for_the_state() {
        assert!(is_kept().is_some());
    }
}
