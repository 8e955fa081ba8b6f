//! Identities in a store: volumes, packs, writers, hosts, and names given by people.
//!
//! Owns the text form of identities and the rule of names. Invariant: each identity can be a part of an object key without
//! escapes.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::observe::one_line;

/// Longest [`StoreName`], ASCII characters.
pub const NAME_CHARS_MAX: usize = 128;

/// A source of random bits, so that a simulation can repeat the bits.
pub trait Entropy: fmt::Debug + Send + Sync {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;
}

/// The random numbers of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn next_u64(&self) -> u64 {
        rand::random()
    }
}

/// 16 bytes with a text form of 32 lower-case hex digits.
macro_rules! random_id {
    ($(#[doc = $doc:literal])* $name:ident) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// A new random identity. A collision with another identity is practically impossible.
            pub fn random(entropy: &dyn Entropy) -> Self {
                let halves = (u128::from(entropy.next_u64()) << 64) | u128::from(entropy.next_u64());
                Self(halves.to_be_bytes())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", u128::from_be_bytes(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                match u128::from_str_radix(text, 16) {
                    Ok(value) if digits => Ok(Self(value.to_be_bytes())),
                    _ => Err(IdError),
                }
            }
        }
    };
}

random_id! {
    /// Identity of a volume, the content behind an export. Never used again.
    VolumeId
}
random_id! {
    /// Random identity of a pack.
    PackId
}
random_id! {
    /// Identity of a daemon as the writer of volumes. Derived from the secret id of the cache, so that a restarted daemon
    /// knows its own manifests.
    WriterId
}

impl WriterId {
    /// The identity of the owner of `secret`. The identity does not reveal the secret.
    pub fn of(secret: &[u8]) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&blake3::derive_key("glidefs writer of volumes", secret)[..16]);
        Self(id)
    }
}

/// The text is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id has 32 hex digits, 0 to 9 and a to f")]
pub struct IdError;

/// A name given by people to an export or a snapshot: a letter or digit, then letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreName(Arc<str>);

/// Why a name was refused, and which names are taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(String);

impl StoreName {
    /// Checks `name` against the rule.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let chars = name.chars().count();
        let refused = if chars > NAME_CHARS_MAX {
            format!("the name has {chars} characters: use at most {NAME_CHARS_MAX}")
        } else if let Some((index, found)) = name.chars().enumerate().find(|&(_, c)| !allowed(c)) {
            let position = index + 1;
            format!(
                "a name must not contain {found:?} (character {position}): use letters, digits, '.', '_' and '-'"
            )
        } else {
            match name.chars().next() {
                Some(first) if first.is_ascii_alphanumeric() => return Ok(Self(name.into())),
                Some(first) => format!("a name must begin with a letter or a digit, not with {first:?}"),
                None => format!(
                    "a name must not be empty: use 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' or '-'"
                ),
            }
        };
        Err(NameError(refused))
    }

    /// The characters of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This name with a random part, which no other object ever has. A name too long for that part stays as it is. Two dots set it
    /// apart: names that end in a dot and a hash are usual.
    pub(super) fn made_unique(&self, entropy: &dyn Entropy) -> Self {
        format!("{self}..{}", PackId::random(entropy)).parse().unwrap_or_else(|_| self.clone())
    }

    /// The name without the part that [`Self::made_unique`] adds.
    pub(super) fn without_unique(&self) -> Self {
        let parts = self.0.rsplit_once("..").filter(|(_, last)| last.parse::<PackId>().is_ok());
        parts.and_then(|(name, _)| name.parse().ok()).unwrap_or_else(|| self.clone())
    }
}

impl Borrow<str> for StoreName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for StoreName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Longest [`HostName`], UTF-8 bytes.
pub const HOST_NAME_BYTES_MAX: usize = 255;

/// The name of a host, for people: 1 to 255 bytes of text that a terminal prints as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(Arc<str>);

impl HostName {
    /// The nearest name to `text`.
    pub fn nearest(text: &str) -> Self {
        let mut name = String::new();
        for character in one_line(text.trim()).chars() {
            if name.len() + character.len_utf8() > HOST_NAME_BYTES_MAX {
                break;
            }
            name.push(character);
        }
        Self(if name.is_empty() { "unknown".into() } else { name.into() })
    }

    /// `text` as a host name; `None` for text that is no host name.
    pub fn exactly(text: &str) -> Option<Self> {
        let fits = (1..=HOST_NAME_BYTES_MAX).contains(&text.len()) && one_line(text) == text;
        fits.then(|| Self(text.into()))
    }

    /// The characters of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_reads_back_from_its_text(bytes: [u8; 16]) {
            let text = VolumeId(bytes).to_string();
            prop_assert_eq!(text.len(), 32);
            prop_assert_eq!(text.parse(), Ok(VolumeId(bytes)));
        }

        #[test]
        fn only_its_own_text_is_an_id(text in "[+0-9a-fA-F]{30,34}") {
            if let Ok(id) = text.parse::<PackId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn a_name_is_taken_exactly_when_it_matches_the_rule(name in "[a-c0-9._/ -]{0,6}") {
            let bytes = name.as_bytes();
            let matches = bytes.first().is_some_and(u8::is_ascii_alphanumeric)
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b));
            prop_assert_eq!(name.parse::<StoreName>().is_ok(), matches);
        }
    }

    proptest! {
        #[test]
        fn any_text_has_a_host_name_near_it(text in "\\PC{0,200}|[\\x00-\\x7f]{0,300}") {
            let name = HostName::nearest(&text);
            prop_assert_eq!(HostName::exactly(name.as_str()), Some(name));
        }
    }

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
            let message = StoreName::new(name).unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains('\n'), "{name:?}: {message}");
        }
    }

    #[test]
    fn names_up_to_the_longest_are_taken() {
        let longest = "x".repeat(NAME_CHARS_MAX);
        for name in ["a", "0", "vm-1.disk_0", "A..b", longest.as_str()] {
            assert_eq!(StoreName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(VolumeId::random(&SystemEntropy), VolumeId::random(&SystemEntropy));
    }
}
