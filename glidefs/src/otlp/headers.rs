//! The file with further headers of requests to the collector.
//!
//! Owns the form of the file. Invariants: a header from the file is never printed, neither in an error nor by `Debug`; only the owner may
//! have permissions on the file.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::client::OtlpError;

/// Longest file of headers, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// Most headers of a file.
const HEADERS_MAX: usize = 32;
/// Permissions that the file must not give to group and others.
const MODE_OF_OTHERS: u32 = 0o077;
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
    let error = |source| OtlpError::Read { path: path.into(), source };
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(error)?;
    let metadata = file.metadata().map_err(error)?;
    if !metadata.is_file() {
        return Err(OtlpError::NotAFile { path: path.into() });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & MODE_OF_OTHERS != 0 {
        return Err(OtlpError::Exposed { path: path.into(), mode });
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(error)?;
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
