//! The status page: who gets the files, and what a browser may do with them.

use std::sync::atomic::Ordering;

use super::access::{TOKEN, with_token};
use super::{Answer, Served, no_figures};

/// The page's files with the types of their contents.
const FILES: [(&str, &str); 6] = [
    ("/", "text/html"),
    ("/page.css", "text/css"),
    ("/page.js", "text/javascript"),
    ("/table.js", "text/javascript"),
    ("/charts.js", "text/javascript"),
    ("/numbers.js", "text/javascript"),
];

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    let prefix = format!("{name}: ");
    let mut lines = answer.head.lines().filter_map(|line| line.strip_prefix(&prefix));
    lines.next().unwrap_or_else(|| panic!("{name} is missing: {}", answer.head))
}

#[tokio::test]
async fn a_listener_without_a_token_has_no_page_and_says_how_to_get_one() {
    let served = Served::new().await;
    for (path, _) in FILES {
        for headers in ["", TOKEN] {
            let refusal = served.send_tcp("GET", path, headers).await.refusal();
            assert_eq!((refusal.0, refusal.1.as_str()), (403, "forbidden"), "{path}");
            assert!(refusal.2.contains("token_file") && refusal.2.contains("status page"), "{}", refusal.2);
        }
        assert_eq!(served.send("GET", path, "").await.status, 200, "the socket has the page");
    }
}

#[tokio::test]
async fn a_listener_with_a_token_serves_the_files_to_everybody_and_figures_with_the_token_only() {
    let served = with_token().await;
    for (path, _) in FILES {
        assert_eq!(served.send_tcp("GET", path, "").await.status, 200, "{path}");
        assert_eq!(served.send_tcp("HEAD", path, "").await.status, 200, "{path}");
        assert_eq!(served.send_tcp("POST", path, "").await.status, 401, "{path}");
    }
    assert_eq!(served.send_tcp("GET", "/page.html", "").await.status, 401);
    assert_eq!(served.send_tcp("GET", "/v1/top", "").await.status, 401);
    let top = served.send_tcp("GET", "/v1/top", TOKEN).await;
    assert_eq!(header(&top, "cache-control"), "no-store");
    assert_eq!(
        (header(&top, "content-type"), top.body.as_str()),
        ("application/json", no_figures().as_str())
    );
    // Counted as those texts that many clients share.
    let stats = &served.stats.tops;
    assert_eq!((stats.scrapes.load(Ordering::Relaxed), stats.encodings.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test]
async fn the_page_runs_its_own_files_only_and_stands_in_no_frame() {
    let served = with_token().await;
    for (path, content_type) in FILES {
        let answer = served.send_tcp("GET", path, "").await;
        assert!(header(&answer, "content-type").starts_with(content_type), "{path}");
        let policy = header(&answer, "content-security-policy");
        for directive in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.split("; ").any(|part| part == directive), "{path}: {directive} in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header(&answer, "x-content-type-options"), "nosniff");
        assert_eq!(header(&answer, "x-frame-options"), "deny");
        assert_eq!(header(&answer, "referrer-policy"), "no-referrer");
    }
}

#[tokio::test]
async fn the_files_name_no_other_host_and_have_no_script_or_style_inside() {
    let served = with_token().await;
    for (path, _) in FILES {
        let text = served.send_tcp("GET", path, "").await.body;
        // The names of XML are no addresses.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "src=\"//", "url(", "@import", "innerHTML", "eval(", "localStorage"] {
            assert!(!text.contains(word), "{path} has {word}");
        }
        if path == "/" {
            for word in ["<style", " style=", "<script>", " onclick", " onload", "javascript:"] {
                assert!(!text.contains(word), "{path} has {word}");
            }
        }
    }
}

#[tokio::test]
async fn a_page_of_another_name_gets_no_file() {
    let served = with_token().await;
    let request = super::request("GET", "/", "", "").replace("Host: localhost", "Host: evil.example");
    let stream = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    let refusal = super::exchange(stream, &request).await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (403, "wrong_host"));
}
