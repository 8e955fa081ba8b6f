//! The status page: a few files, served from the program.
//!
//! Owns the files and their headers. Does not own who may fetch them (`guard`), nor the figures: the page asks `/v1/top` for those,
//! as any other client. Invariant: the page runs no script and no style but its own files, talks to this daemon only, and stands in
//! no frame.

use axum::http::HeaderName;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};

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

    /// The file.
    pub fn answer(&self) -> Response {
        let headers: [(HeaderName, &str); 6] = [
            (CONTENT_TYPE, self.content_type),
            // The browser asks each time, so a page never runs beside a daemon of another version.
            (CACHE_CONTROL, "no-store"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
        ];
        (headers, self.text).into_response()
    }
}
