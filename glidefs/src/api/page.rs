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

/// The paths of the page's files.
pub(super) const PATHS: [&str; 6] = ["/", "/page.css", "/page.js", "/table.js", "/charts.js", "/numbers.js"];

/// Everything that the page may do in a browser.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct PageFile {
    content_type: &'static str,
    text: &'static str,
}

const HTML: PageFile =
    PageFile { content_type: "text/html; charset=utf-8", text: include_str!("page/index.html") };
const CSS: PageFile =
    PageFile { content_type: "text/css; charset=utf-8", text: include_str!("page/page.css") };
const PAGE_JS: PageFile = PageFile::script(include_str!("page/page.js"));
const TABLE_JS: PageFile = PageFile::script(include_str!("page/table.js"));
const CHARTS_JS: PageFile = PageFile::script(include_str!("page/charts.js"));
const NUMBERS_JS: PageFile = PageFile::script(include_str!("page/numbers.js"));

impl PageFile {
    const fn script(text: &'static str) -> Self {
        Self { content_type: "text/javascript; charset=utf-8", text }
    }

    /// The file, or the answer that the client has the same file already.
    fn answer(&self, request: &HeaderMap) -> Response {
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

/// The status page, for people.
#[utoipa::path(
    get, path = "/", operation_id = "page_html", tag = "page",
    responses(
        (status = 200, description = "The status page; over TCP only where the API has a token.", body = String, content_type = "text/html"),
        (status = 304, description = "The client has the file of this version."),
    )
)]
pub(super) async fn html(headers: HeaderMap) -> Response {
    HTML.answer(&headers)
}

/// The styles of the status page.
#[utoipa::path(
    get, path = "/page.css", operation_id = "page_css", tag = "page",
    responses(
        (status = 200, description = "The styles.", body = String, content_type = "text/css"),
        (status = 304, description = "The client has the file of this version."),
    )
)]
pub(super) async fn css(headers: HeaderMap) -> Response {
    CSS.answer(&headers)
}

/// The program of the status page: asks and shows.
#[utoipa::path(
    get, path = "/page.js", tag = "page",
    responses(
        (status = 200, description = "The module.", body = String, content_type = "text/javascript"),
        (status = 304, description = "The client has the file of this version."),
    )
)]
pub(super) async fn page_js(headers: HeaderMap) -> Response {
    PAGE_JS.answer(&headers)
}

/// The table of exports of the status page.
#[utoipa::path(
    get, path = "/table.js", tag = "page",
    responses(
        (status = 200, description = "The module.", body = String, content_type = "text/javascript"),
        (status = 304, description = "The client has the file of this version."),
    )
)]
pub(super) async fn table_js(headers: HeaderMap) -> Response {
    TABLE_JS.answer(&headers)
}

/// The charts of the status page.
#[utoipa::path(
    get, path = "/charts.js", tag = "page",
    responses(
        (status = 200, description = "The module.", body = String, content_type = "text/javascript"),
        (status = 304, description = "The client has the file of this version."),
    )
)]
pub(super) async fn charts_js(headers: HeaderMap) -> Response {
    CHARTS_JS.answer(&headers)
}

/// The numbers of the status page, as text and as rates.
#[utoipa::path(
    get, path = "/numbers.js", tag = "page",
    responses(
        (status = 200, description = "The module.", body = String, content_type = "text/javascript"),
        (status = 304, description = "The client has the file of this version."),
    )
)]
pub(super) async fn numbers_js(headers: HeaderMap) -> Response {
    NUMBERS_JS.answer(&headers)
}
