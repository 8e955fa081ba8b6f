//! The file with further headers of requests to the collector.
//!
//! Owns the form of the file. Does not own who may read the file (`private_file`). Invariant: a header from the file is never printed, neither
//! in an error nor by `Debug`.

use std::path::Path;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::client::OtlpError;
use crate::private_file::{self, PrivateFileError};

/// Longest file of headers, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// Most headers of a file.
const HEADERS_MAX: usize = 32;
/// Headers that say how the request is sent, which the file cannot know.
const RESERVED: [&str; 7] = [
    "content-type",
    "content-length",
    "content-encoding",
    "host",
    "connection",
    "transfer-encoding",
    "expect",
];

/// The headers in the file at `path`: lines `Name: value`. Empty lines and lines that begin with `#` say nothing.
pub(super) fn load(path: &Path) -> Result<HeaderMap, OtlpError> {
    let text = private_file::read(path, FILE_BYTES_MAX + 1).map_err(|error| match error {
        PrivateFileError::Read(source) => OtlpError::Read { path: path.into(), source },
        PrivateFileError::NotAFile => OtlpError::NotAFile { path: path.into() },
        PrivateFileError::Exposed { mode } => OtlpError::Exposed { path: path.into(), mode },
    })?;
    let mut headers = HeaderMap::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_too_long = headers.len() == HEADERS_MAX || text.len() as u64 > FILE_BYTES_MAX;
        let header = header(line).filter(|_| !is_too_long);
        let (name, value) =
            header.ok_or_else(|| OtlpError::NotAHeader { path: path.into(), line: number })?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    (!RESERVED.contains(&name.as_str())).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn loaded(text: &str, mode: u32) -> Result<HeaderMap, OtlpError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        load(&path)
    }

    #[test]
    fn headers_are_lines_that_nobody_prints() {
        let headers =
            loaded("# token\n\nAuthorization: Bearer hush:hush\r\n x-scope : a b \n", 0o600).unwrap();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["authorization"], "Bearer hush:hush");
        assert_eq!(headers["x-scope"], "a b");
        assert!(!format!("{headers:?}").contains("hush"));
    }

    #[test]
    fn a_file_that_is_no_list_of_headers_is_refused_without_its_words() {
        for text in
            ["hushhush", "a b: hushhush", "x: hush\u{1}hush", "Host: hushhush", "content-length: 5 hushhush"]
        {
            let message = loaded(&format!("\n{text}\n"), 0o600).unwrap_err().to_string();
            assert!(message.contains("line 2") && !message.contains("hush"), "{message}");
        }
        assert!(loaded(&"x: hush\n".repeat(HEADERS_MAX), 0o600).is_ok());
        for text in ["x: hush\n".repeat(HEADERS_MAX + 1), format!("x: {}", "h".repeat(20_000))] {
            assert!(matches!(loaded(&text, 0o600), Err(OtlpError::NotAHeader { .. })));
        }
        assert!(matches!(loaded("x: y", 0o640), Err(OtlpError::Exposed { mode: 0o640, .. })));
        assert!(matches!(load(Path::new("/dev/null")), Err(OtlpError::NotAFile { .. })));
        assert!(matches!(load(Path::new("/no/such/file")), Err(OtlpError::Read { .. })));
    }
}
