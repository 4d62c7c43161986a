//! The part of HTTP/1.1 that serving one page requires.
//!
//! Each connection carries one request and is closed after the response. The number of connections, the size of a
//! request and the duration of a connection are bounded, whatever the client does or does not do.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Maximum length of a request: its line and fields together.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Maximum number of connections; others wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;

/// How long a connection may last.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);

/// How long, and for how many bytes, the server keeps reading from a client after the response. Closing at once could
/// destroy the response on its way.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1 << 20;

/// How long to wait when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The path of the page.
const PATH: &str = "/metrics";

/// The method of a request that is answered with the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Head,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLarge,
    BadVersion,
    /// The page can't be generated.
    Unavailable,
}

/// Serves the text that `page` generates, as `media_type`. Runs forever.
pub(super) async fn serve(
    listener: TcpListener,
    media_type: &'static str,
    page: impl AsyncFn() -> anyhow::Result<String> + 'static,
) {
    let page = Rc::new(page);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let page = Rc::clone(&page);
                tokio::task::spawn_local(async move {
                    // If a client is gone or too slow, nothing is left to do for it.
                    let _ = timeout(CONNECTION_TIME_MAX, answer(stream, media_type, &*page)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "can't take a connection for metrics");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(
    mut stream: TcpStream,
    media_type: &str,
    page: &impl AsyncFn() -> anyhow::Result<String>,
) -> io::Result<()> {
    let request = receive(&mut stream).await?;
    let asked = request.as_deref().map_or(Err(Refusal::TooLarge), judge);
    let made = match asked {
        Ok(method) => {
            page().await.map(|body| (method, body)).map_err(|error| (Refusal::Unavailable, format!("{error:#}")))
        }
        Err(refusal) => Err((refusal, refusal.status().0.to_owned())),
    };
    let response = match made {
        Ok((Method::Get, body)) => head("200 OK", media_type, body.len(), "") + &body,
        Ok((Method::Head, body)) => head("200 OK", media_type, body.len(), ""),
        Err((refusal, why)) => {
            let (status, more) = refusal.status();
            head(status, "text/plain; charset=utf-8", why.len() + 1, more) + &why + "\n"
        }
    };
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    let _ = timeout(LINGER_TIME_MAX, linger(&mut stream)).await;
    Ok(())
}

fn head(status: &str, media_type: &str, len: usize, more: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len}\r\nConnection: close\r\n{more}\r\n"
    )
}

/// Reads up to the empty line that ends a request's fields, or to the end of the client's data. Returns `None` if that
/// is too much.
async fn receive(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::with_capacity(REQUEST_BYTES_MAX + 1);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        let room = REQUEST_BYTES_MAX + 1 - request.len();
        if (&mut *stream).take(room as u64).read_buf(&mut request).await? == 0 {
            break;
        }
    }
    Ok(Some(request))
}

/// Checks a request.
fn judge(request: &[u8]) -> Result<Method, Refusal> {
    let is_whole = request.windows(4).any(|end| end == b"\r\n\r\n");
    let line = request.split(|&byte| byte == b'\r').next().filter(|_| is_whole).ok_or(Refusal::BadRequest)?;
    let line = std::str::from_utf8(line).map_err(|_| Refusal::BadRequest)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::BadRequest);
    };
    match version {
        "HTTP/1.1" | "HTTP/1.0" => {}
        other if other.starts_with("HTTP/") => return Err(Refusal::BadVersion),
        _ => return Err(Refusal::BadRequest),
    }
    if path_of(target) != PATH {
        return Err(Refusal::NotFound);
    }
    match method {
        "GET" => Ok(Method::Get),
        "HEAD" => Ok(Method::Head),
        _ => Err(Refusal::MethodNotAllowed),
    }
}

/// The path of a request's target, which may include the host and a query.
fn path_of(target: &str) -> &str {
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |start| &rest[start..]),
        None => target,
    };
    path.split_once('?').map_or(path, |(path, _)| path)
}

async fn linger(stream: &mut TcpStream) -> io::Result<()> {
    let mut ignored = [0; 4096];
    let mut left = LINGER_BYTES_MAX;
    while left > 0 {
        match stream.read(&mut ignored).await? {
            0 => return Ok(()),
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}

impl Refusal {
    /// The status line's text, and the additional fields.
    fn status(self) -> (&'static str, &'static str) {
        match self {
            Self::BadRequest => ("400 Bad Request", ""),
            Self::NotFound => ("404 Not Found", ""),
            Self::MethodNotAllowed => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
            Self::TooLarge => ("431 Request Header Fields Too Large", ""),
            Self::BadVersion => ("505 HTTP Version Not Supported", ""),
            Self::Unavailable => ("503 Service Unavailable", ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_requests_for_the_page_are_answered_with_it() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Ok(Method::Get)),
            ("HEAD /metrics HTTP/1.0\r\n\r\n", Ok(Method::Head)),
            ("GET /metrics?debug=1 HTTP/1.1\r\n\r\n", Ok(Method::Get)),
            ("GET http://localhost:9187/metrics HTTP/1.1\r\n\r\n", Ok(Method::Get)),
            ("GET http://localhost:9187 HTTP/1.1\r\n\r\n", Err(Refusal::NotFound)),
            ("GET / HTTP/1.1\r\n\r\n", Err(Refusal::NotFound)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Err(Refusal::NotFound)),
            ("POST /elsewhere HTTP/1.1\r\n\r\n", Err(Refusal::NotFound)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Err(Refusal::MethodNotAllowed)),
            ("get /metrics HTTP/1.1\r\n\r\n", Err(Refusal::MethodNotAllowed)),
            ("GET /metrics HTTP/2.0\r\n\r\n", Err(Refusal::BadVersion)),
            ("GET /metrics\r\n\r\n", Err(Refusal::BadRequest)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Err(Refusal::BadRequest)),
            ("GET /metrics FTP/1.1\r\n\r\n", Err(Refusal::BadRequest)),
            ("GET /metrics HTTP/1.1\r\n", Err(Refusal::BadRequest)),
            ("\r\n\r\n", Err(Refusal::BadRequest)),
            ("", Err(Refusal::BadRequest)),
        ] {
            assert_eq!(judge(request.as_bytes()), expected, "{request:?}");
        }
        assert_eq!(judge(b"GET /\xff HTTP/1.1\r\n\r\n"), Err(Refusal::BadRequest));
    }
}
