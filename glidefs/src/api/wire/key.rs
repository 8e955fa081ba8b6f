//! The header `Idempotency-Key`: its text.
//!
//! Invariant: the quoted and the plain form of a key are the same key.

use std::str::FromStr;

/// The header with the key of a request.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header of an answer that was kept from the first time.
pub const IDEMPOTENCY_REPLAYED: &str = "idempotency-replayed";
/// Most characters of a key.
const CHARS_MAX: usize = 255;

/// The key of a request: 1 to 255 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(String);

/// The text is no key.
#[derive(Debug, thiserror::Error)]
#[error(
    "an idempotency key has 1 to {CHARS_MAX} visible ASCII characters, without spaces, such as a UUID; in the header it may stand in double quotes"
)]
pub struct KeyError;

impl IdempotencyKey {
    /// The key in the value of a header: as it is, or as a string of the structured fields of RFC 9651, in quotes.
    ///
    /// # Errors
    /// When the value has no key, or more than the key.
    pub fn of_header(value: &[u8]) -> Result<Self, KeyError> {
        let text = std::str::from_utf8(value).map_err(|_| KeyError)?;
        let Some(quoted) = text.strip_prefix('"') else { return text.parse() };
        let inner = quoted.strip_suffix('"').ok_or(KeyError)?;
        let (mut key, mut chars) = (String::with_capacity(inner.len()), inner.chars());
        while let Some(char) = chars.next() {
            match char {
                '\\' => key.push(chars.next().filter(|next| matches!(next, '"' | '\\')).ok_or(KeyError)?),
                '"' => return Err(KeyError),
                other => key.push(other),
            }
        }
        key.parse()
    }

    /// The value of a header with this key.
    pub fn to_header(&self) -> String {
        format!("\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }

    /// The key itself, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IdempotencyKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let is_key =
            (1..=CHARS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_key.then(|| Self(text.into())).ok_or(KeyError)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_is_visible_text_with_or_without_quotes() {
        let key = |value: &str| IdempotencyKey::of_header(value.as_bytes()).ok().map(|key| key.0);
        for (value, expected) in [
            ("a", "a"),
            ("\"a\"", "a"),
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            (r#""a\"b\\""#, r#"a"b\"#),
            (r#"a"b"#, r#"a"b"#),
        ] {
            assert_eq!(key(value).as_deref(), Some(expected), "{value}");
        }
        assert!(key(&"x".repeat(255)).is_some() && key(&format!("\"{}\"", "x".repeat(255))).is_some());
        assert!(key(&"x".repeat(256)).is_none());
        for value in [
            "",
            "\"",
            "\"\"",
            "a b",
            "\"a b\"",
            "\"a",
            "\"a\";b=1",
            r#""a"b""#,
            r#""a\"#,
            r#""\a""#,
            "ä",
            "a, b",
            "a\t",
        ] {
            assert_eq!(key(value), None, "{value:?}");
        }
        assert!(IdempotencyKey::of_header(b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn the_value_of_a_header_holds_every_key(text in "[!-~]{1,255}") {
            let key: IdempotencyKey = text.parse().unwrap();
            prop_assert_eq!(IdempotencyKey::of_header(key.to_header().as_bytes()).unwrap(), key);
        }

        #[test]
        fn arbitrary_values_never_panic(value in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = IdempotencyKey::of_header(&value);
        }
    }
}
