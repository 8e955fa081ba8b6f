//! The HTTP client below `object_store`.
//!
//! Owns the client, what is left of an answer without success, and the report of what moves (`transfer`): `object_store`'s own client takes
//! no part in that. Does not own the meaning of answers (`classify`). Invariant: it ends no request that moves. The kernel ends a connection
//! on which what was sent stays without acknowledgement.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::Response;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientConfigKey as Key, ClientOptions};
use rand::seq::SliceRandom;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Body, Certificate, Client, NoProxy, Proxy, Request};

use super::classify::{Answer, in_region};
use super::transfer::{Sending, Transfer};

/// Time limit of a connection's beginning.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Makes clients that turn answers without an error of their own into [`Answer`]s.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = client(options)
            .map_err(|error| object_store::Error::Generic { store: "HTTP", source: error.into() })?;
        Ok(HttpClient::new(Service(client)))
    }
}

/// A client with `options`, without limits on the time of a request.
fn client(options: &ClientOptions) -> reqwest::Result<Client> {
    // Has been installed before where there was a client before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let get = |key| options.get_config_value(&key);
    let is = |key| get(key).is_some_and(|value| value == "true");
    let mut builder = Client::builder()
        .user_agent(
            get(Key::UserAgent).unwrap_or_else(|| concat!("glidefs/", env!("CARGO_PKG_VERSION")).into()),
        )
        .connect_timeout(CONNECT_TIME_MAX)
        .https_only(!is(Key::AllowHttp))
        .danger_accept_invalid_certs(is(Key::AllowInvalidCertificates))
        // A compressed answer has another length than the object.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    if is(Key::Http1Only) {
        builder = builder.http1_only();
    }
    if is(Key::Http2Only) {
        builder = builder.http2_prior_knowledge();
    }
    if is(Key::RandomizeAddresses) {
        builder = builder.dns_resolver(Shuffled);
    }
    if let Some(proxy) = get(Key::ProxyUrl) {
        let excludes = get(Key::ProxyExcludes).and_then(|hosts| NoProxy::from_string(&hosts));
        builder = builder.proxy(Proxy::all(proxy)?.no_proxy(excludes));
    }
    if let Some(certificate) = get(Key::ProxyCaCertificate) {
        builder = builder.tls_certs_merge([Certificate::from_pem(certificate.as_bytes())?]);
    }
    builder.build()
}

/// The addresses of a host in random order, so that connections go to all servers of a store.
struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let mut found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            found.shuffle(&mut rand::rng());
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[derive(Debug)]
struct Service(Client);

fn failed(error: reqwest::Error) -> HttpError {
    // The address is in the error that the caller makes of this one.
    HttpError::new(HttpErrorKind::Unknown, error.without_url())
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let transfer = Transfer::current();
        let request = request.map(|body| match (body.as_bytes().cloned(), transfer.clone()) {
            (Some(bytes), _) => bytes.into(),
            (None, Some(transfer)) => Body::wrap(Sending::new(body, transfer)),
            (None, None) => Body::wrap(body),
        });
        let request = Request::try_from(request).map_err(failed)?;
        let response: Response<Body> = self.0.execute(request).await.map_err(failed)?.into();
        let moved = move || transfer.iter().for_each(Transfer::moved);
        moved();
        let response =
            response.map(|body| HttpResponseBody::new(body.map_err(failed).inspect_frame(move |_| moved())));
        let status = response.status().as_u16();
        // `object_store` has errors of its own for these statuses.
        if response.status().is_success() || matches!(status, 304 | 401 | 403 | 409 | 412) {
            return Ok(response);
        }
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let region = response.headers().get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
        let region = region.filter(|_| matches!(status, 301 | 307 | 400)).map(in_region);
        let (parts, body) = response.into_parts();
        let body = body.bytes().await.unwrap_or_default();
        // A store names the error; a proxy whose store is away does not.
        if status == 404 && String::from_utf8_lossy(&body).contains("<Code>") {
            return Ok(HttpResponse::from_parts(parts, body.into()));
        }
        let answer = Answer::new(status, &String::from_utf8_lossy(&body), retry_after);
        let about = answer.about.clone().or(region);
        Err(HttpError::new(HttpErrorKind::Unknown, Answer { about, ..answer }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use futures_util::future::join_all;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Mutex;
    use tokio::time::sleep;

    use super::*;
    use crate::fair::WEIGHT_DEFAULT;
    use crate::store::backend::Backend;
    use crate::store::client::{Created, Store, StoreOptions};
    use crate::store::ids::{PackId, VolumeId};
    use crate::store::key::Key as ObjectKey;
    use crate::store::retry::RetryPolicy;
    use crate::store::stats::Operation;

    const KIB: u64 = 1 << 10;

    /// A server of the protocol of S3 that takes creations slowly.
    struct Server {
        bytes_per_second: u64,
        /// The line that all connections share.
        line: Mutex<()>,
        /// Bytes of bodies that have come.
        received: AtomicU64,
        /// Pages of listings that were sent.
        pages: AtomicU64,
    }

    impl Server {
        /// A store behind a server, whose requests may stand still for two seconds.
        async fn store(bytes_per_second: u64) -> (Arc<Self>, Store) {
            let (line, received, pages) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
            let server = Arc::new(Self { bytes_per_second, line, received, pages });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            let accepting = Arc::clone(&server);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(Arc::clone(&accepting).serve(stream));
                }
            });
            let variables = [
                ("AWS_ENDPOINT_URL", &*endpoint),
                ("AWS_ALLOW_HTTP", "true"),
                ("AWS_ACCESS_KEY_ID", "key"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
                ("AWS_REGION", "region"),
            ];
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let backend = Backend::connect(&"s3://bucket".parse().unwrap(), &variables, false).unwrap();
            let retry = RetryPolicy { idle_time_max: Duration::from_secs(2), ..RetryPolicy::default() };
            (server, Store::over(backend, StoreOptions { retry, ..StoreOptions::default() }))
        }

        /// Answers the requests of a connection until the client closes it.
        async fn serve(self: Arc<Self>, mut stream: TcpStream) {
            let mut bytes = Vec::new();
            loop {
                let head = loop {
                    if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                        let body = bytes.split_off(end + 4);
                        break String::from_utf8(std::mem::replace(&mut bytes, body)).unwrap();
                    }
                    if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                        return;
                    }
                };
                let mut lines = head.lines();
                let line = lines.next().unwrap().to_owned();
                let length =
                    lines.find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                let (mut left, mut piece) = (length.unwrap_or(0), std::mem::take(&mut bytes));
                while left > 0 {
                    if piece.is_empty() {
                        piece.resize(16 << 10, 0);
                        let Ok(read @ 1..) = stream.read(&mut piece).await else { return };
                        piece.truncate(read);
                    }
                    let taken = piece.len().min(left);
                    bytes = piece.split_off(taken);
                    {
                        let _line = self.line.lock().await;
                        sleep(Duration::from_micros(taken as u64 * 1_000_000 / self.bytes_per_second)).await;
                    }
                    self.received.fetch_add(taken as u64, SeqCst);
                    left -= taken;
                    piece.clear();
                }
                let body = if line.starts_with("GET") { self.page().await } else { String::new() };
                let head =
                    format!("HTTP/1.1 200 OK\r\netag: \"1\"\r\ncontent-length: {}\r\n\r\n", body.len());
                if stream.write_all((head + &body).as_bytes()).await.is_err() {
                    return;
                }
            }
        }

        /// One of five pages of a listing, which take longer together than a request may stand still.
        async fn page(&self) -> String {
            sleep(Duration::from_millis(600)).await;
            let page = self.pages.fetch_add(1, SeqCst);
            let next = if page < 4 { "<NextContinuationToken>next</NextContinuationToken>" } else { "" };
            let volume = VolumeId([u8::try_from(page).unwrap(); 16]);
            let folder = format!("<CommonPrefixes><Prefix>volumes/{volume}/</Prefix></CommonPrefixes>");
            format!(
                "<?xml version=\"1.0\"?><ListBucketResult>{folder}<IsTruncated>{}</IsTruncated>{next}</ListBucketResult>",
                page < 4
            )
        }
    }

    fn pack(number: u8) -> (VolumeId, ObjectKey) {
        let volume = VolumeId([number; 16]);
        (volume, ObjectKey::Pack(volume, PackId([number; 16])))
    }

    #[tokio::test]
    async fn eight_volumes_on_a_slow_line_send_each_pack_once() {
        const BYTES: u64 = 768 * KIB;
        let (server, store) = Server::store(KIB * KIB).await;
        let creations = (0..8).map(async |number| {
            let (volume, key) = pack(number);
            let data = vec![number; usize::try_from(BYTES).unwrap()];
            store.for_packs(volume, WEIGHT_DEFAULT).create(&key, &[data.into()]).await
        });
        for created in join_all(creations).await {
            assert_eq!(created.unwrap(), Created::Created);
        }
        let received = server.received.load(SeqCst);
        assert!(received <= 8 * BYTES * 11 / 10, "{received} bytes were sent for {}", 8 * BYTES);
        assert_eq!(store.stats().of(Operation::Put).retries.get(), 0);
    }

    #[tokio::test]
    async fn a_body_moves_as_the_server_takes_it() {
        // Several times what the buffers of the kernel take. No pack: nothing adds to the time in which nothing may move.
        const BYTES: u64 = 40 * KIB * KIB;
        let (server, store) = Server::store(12 * KIB * KIB).await;
        let data = vec![1; usize::try_from(BYTES).unwrap()];
        let created = store.create(&pack(1).1, &[data.into()]).await.unwrap();
        assert_eq!((created, server.received.load(SeqCst)), (Created::Created, BYTES));
        assert_eq!(store.stats().of(Operation::Put).retries.get(), 0);
    }

    #[tokio::test]
    async fn a_listing_of_folders_may_have_any_number_of_pages() {
        let (server, store) = Server::store(KIB).await;
        assert_eq!(store.volumes().await.unwrap().len(), 5);
        assert_eq!(server.pages.load(SeqCst), 5);
        assert_eq!(store.stats().of(Operation::List).retries.get(), 0);
    }
}
