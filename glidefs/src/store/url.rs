//! Location of a store, as text.
//!
//! Owns the syntax of `store.url`. Does not own the way to reach the place. Invariant: a printed URL reads back.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Kind and location of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreUrl {
    /// A directory, by absolute path.
    File(PathBuf),
    /// Memory, gone with the process: for tests.
    Memory,
    /// A bucket of Amazon S3, or of a server with the protocol of S3.
    S3(Bucket),
    /// A bucket of Google Cloud Storage.
    Gcs(Bucket),
    /// A container of Azure Blob Storage.
    Azure(Bucket),
}

/// A bucket, and the beginning of every key in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Name of the bucket or container.
    pub name: String,
    /// Beginning of every key, without a slash at either end; may be empty.
    pub prefix: String,
}

/// The text does not say where a store is: the text, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} {1}")]
pub struct UrlError(String, &'static str);

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let found = match scheme {
            "file" if rest.starts_with('/') => Ok(Self::File(rest.into())),
            "file" => Err(
                "does not name a directory: write file:// and its absolute path, as in file:///var/lib/glidefs-store",
            ),
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err("cannot be used: nothing may follow memory://"),
            "s3" => bucket(rest).map(Self::S3),
            "gs" => bucket(rest).map(Self::Gcs),
            "az" => bucket(rest).map(Self::Azure),
            _ => Err(
                "is no store URL: use file:///directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or \
                 memory://",
            ),
        };
        found.map_err(|advice| UrlError(text.into(), advice))
    }
}

fn bucket(text: &str) -> Result<Bucket, &'static str> {
    let (name, prefix) = text.split_once('/').unwrap_or((text, ""));
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        return Err("does not name a bucket: letters, digits, '-', '.' and '_' can be in its name");
    }
    let prefix = prefix.trim_matches('/');
    let allowed = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._=+@".contains(&b))
    };
    if !prefix.is_empty() && !prefix.split('/').all(allowed) {
        return Err(
            "has a prefix that cannot be used: letters, digits, '-', '.', '_', '=', '+' and '@' can be in it, between \
             single slashes",
        );
    }
    Ok(Bucket { name: name.into(), prefix: prefix.into() })
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, Bucket { name, prefix }) = match self {
            Self::File(path) => return write!(f, "file://{}", path.display()),
            Self::Memory => return f.write_str("memory://"),
            Self::S3(bucket) => ("s3", bucket),
            Self::Gcs(bucket) => ("gs", bucket),
            Self::Azure(bucket) => ("az", bucket),
        };
        let slash = if prefix.is_empty() { "" } else { "/" };
        write!(f, "{scheme}://{name}{slash}{prefix}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_are_told_apart_and_printed_as_they_were() {
        for url in [
            "file:///var/store",
            "memory://",
            "s3://bucket",
            "s3://bucket/a/b",
            "gs://bucket/x=1",
            "az://container/a-b_c.d",
        ] {
            assert_eq!(url.parse::<StoreUrl>().unwrap().to_string(), url);
        }
        assert_eq!("s3://b//a/".parse::<StoreUrl>().unwrap().to_string(), "s3://b/a");
    }

    #[test]
    fn every_refusal_says_what_to_write() {
        for (url, says) in [
            ("", "file:///directory"),
            ("/var/store", "file:///directory"),
            ("http://host/x", "s3://bucket/prefix"),
            ("file://relative", "absolute path"),
            ("memory://x", "nothing may follow"),
            ("s3://", "bucket"),
            ("s3:///x", "bucket"),
            ("s3://bucket/a//b", "single slashes"),
            ("s3://bucket/a/../b", "single slashes"),
            ("s3://bucket/a b", "single slashes"),
            ("s3://bucket/50%", "single slashes"),
        ] {
            let message = url.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains('\n'), "{url}: {message}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(text in "(file|s3|gs|az|memory)://[a-zA-Z0-9/._ %-]{0,12}") {
            if let Ok(url) = text.parse::<StoreUrl>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
    }
}
