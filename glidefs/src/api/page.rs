//! The status page: a few files, served from the program.
//!
//! Owns the files and their headers. Does not own who may fetch them (`guard`), nor the figures: the page asks `/v1/top` for those,
//! as any other client. Invariant: the page runs no script and no style but its own files, talks to this daemon only, and stands in
//! no frame.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::checksum;

/// Everything that the page may do in a browser.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
#[derive(Debug)]
pub(super) struct PageFile {
    /// The path at which the file is served.
    pub path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

/// The files of the page.
pub(super) static FILES: [PageFile; 6] = [
    PageFile { path: "/", content_type: "text/html; charset=utf-8", text: include_str!("page/index.html") },
    PageFile {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("page/page.css"),
    },
    PageFile::script("/page.js", include_str!("page/page.js")),
    PageFile::script("/table.js", include_str!("page/table.js")),
    PageFile::script("/charts.js", include_str!("page/charts.js")),
    PageFile::script("/numbers.js", include_str!("page/numbers.js")),
];

/// Whether `path` is that of a file of the page.
pub(super) fn has_file(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

impl PageFile {
    const fn script(path: &'static str, text: &'static str) -> Self {
        Self { path, content_type: "text/javascript; charset=utf-8", text }
    }

    /// The file, or the answer that the client has the same file already.
    pub fn answer(&self, request: &HeaderMap) -> Response {
        let tag = format!("\"{:x}-{:08x}\"", self.text.len(), checksum::crc32c(self.text.as_bytes()));
        let headers: [(HeaderName, &str); 7] = [
            (CONTENT_TYPE, self.content_type),
            (ETAG, &tag),
            // The browser asks each time, so a page never runs beside a daemon of another version.
            (CACHE_CONTROL, "no-cache"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
        ];
        if has(request, &tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, self.text).into_response()
    }
}

/// Whether the client has the file with the tag.
fn has(request: &HeaderMap, tag: &str) -> bool {
    let values = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|known| {
        let known = known.trim();
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    })
}
