//! The one place where a failure becomes an errno, in the kernel's form: a negative number.

use crate::worker::Failure;

/// The result with which to answer a failed request.
pub fn of(failure: &Failure) -> i32 {
    let errno = match failure {
        Failure::Refused(_) => libc::EINVAL,
        Failure::Unsupported { .. } => libc::EOPNOTSUPP,
        Failure::Full => libc::ENOSPC,
        Failure::Copy(_) | Failure::Cache(_) => libc::EIO,
    };
    -errno
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_is_enospc_and_what_is_not_known_better_is_eio() {
        assert_eq!(of(&Failure::Full), -libc::ENOSPC);
        assert_eq!(of(&Failure::Copy(std::io::ErrorKind::UnexpectedEof.into())), -libc::EIO);
    }
}
