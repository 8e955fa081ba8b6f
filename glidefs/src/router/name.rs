//! Names of exports: which are allowed.
//!
//! Owns the naming rule. Invariant: an [`ExportName`] needs no escaping in a URL path, a file name or a metric label.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Longest name, in characters. All allowed characters are ASCII.
pub const NAME_CHARS_MAX: usize = 128;

/// A name that follows the rule: a letter or digit, then letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportName(Arc<str>);

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("an export name must not be empty: use 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' or '-'")]
    Empty,
    /// The name is longer than [`NAME_CHARS_MAX`].
    #[error("the export name has {chars} characters: use at most {NAME_CHARS_MAX}")]
    TooLong {
        /// Length of the name.
        chars: usize,
    },
    /// The name begins with a character other than a letter or a digit.
    #[error("an export name must begin with a letter or a digit, not with {found:?}")]
    Start {
        /// The first character.
        found: char,
    },
    /// The name has a character that the rule does not allow.
    #[error(
        "an export name must not contain {found:?} (character {position}): use letters, digits, '.', '_' and '-'"
    )]
    Character {
        /// The character.
        found: char,
        /// The character's place in the name, from 1.
        position: usize,
    },
}

impl ExportName {
    /// Checks `name` against the rule.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let chars = name.chars().count();
        if chars > NAME_CHARS_MAX {
            return Err(NameError::TooLong { chars });
        }
        let first = name.chars().next().ok_or(NameError::Empty)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some((index, found)) = name.chars().enumerate().find(|&(_, c)| !allowed(c)) {
            return Err(NameError::Character { found, position: index + 1 });
        }
        if !first.is_ascii_alphanumeric() {
            return Err(NameError::Start { found: first });
        }
        Ok(Self(name.into()))
    }

    /// The characters of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ExportName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_refusal_says_what_is_wrong_in_one_line() {
        let long = "x".repeat(300);
        for (name, says) in [
            ("", "empty"),
            ("..", "begin with"),
            ("-x", "begin with"),
            ("a/b", "'/'"),
            ("../etc", "'/'"),
            ("a b", "' '"),
            ("a\nb", "'\\n'"),
            ("a\u{0}", "'\\0'"),
            ("ü", "'ü'"),
            (long.as_str(), "300 characters"),
        ] {
            let message = ExportName::new(name).unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains('\n'), "{name:?}: {message}");
        }
    }

    #[test]
    fn names_up_to_the_longest_are_taken() {
        let longest = "x".repeat(NAME_CHARS_MAX);
        for name in ["a", "0", "vm-1.disk_0", "A..b", longest.as_str()] {
            assert_eq!(ExportName::new(name).unwrap().as_str(), name);
        }
    }

    proptest! {
        #[test]
        fn a_name_is_taken_exactly_when_it_matches_the_rule(name in "[a-c0-9._/ -]{0,6}") {
            let bytes = name.as_bytes();
            let matches = bytes.first().is_some_and(u8::is_ascii_alphanumeric)
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b));
            prop_assert_eq!(ExportName::new(&name).is_ok(), matches);
        }
    }
}
