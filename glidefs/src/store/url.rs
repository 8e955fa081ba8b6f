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

/// The text does not say where a store is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is unknown or missing.
    #[error(
        "{0:?} is no store URL: use file:///directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or \
         memory://"
    )]
    Scheme(String),
    /// The path of the directory is not absolute.
    #[error(
        "{0:?} does not name a directory: write file:// and its absolute path, as in file:///var/lib/glidefs-store"
    )]
    Directory(String),
    /// There is text behind `memory://`.
    #[error("{0:?}: nothing may follow memory://")]
    Memory(String),
    /// No bucket can have the name.
    #[error("{0:?} does not name a bucket: letters, digits, '-', '.' and '_' can be in its name")]
    Bucket(String),
    /// The prefix would have to be escaped.
    #[error(
        "{0:?} has a prefix that cannot be used: letters, digits, '-', '.', '_', '=', '+' and '@' can be in it, between \
         single slashes"
    )]
    Prefix(String),
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| UrlError::Scheme(text.into()))?;
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::File(rest.into())),
            "file" => Err(UrlError::Directory(text.into())),
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(UrlError::Memory(text.into())),
            "s3" => bucket(text, rest).map(Self::S3),
            "gs" => bucket(text, rest).map(Self::Gcs),
            "az" => bucket(text, rest).map(Self::Azure),
            _ => Err(UrlError::Scheme(text.into())),
        }
    }
}

fn bucket(text: &str, rest: &str) -> Result<Bucket, UrlError> {
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        return Err(UrlError::Bucket(text.into()));
    }
    let prefix = prefix.trim_matches('/');
    let allowed = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._=+@".contains(&b))
    };
    if !prefix.is_empty() && !prefix.split('/').all(allowed) {
        return Err(UrlError::Prefix(text.into()));
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
