//! Listening sockets: accept connections up to a limit, with TLS where it is configured, serve HTTP/1.1 and HTTP/2, and
//! finish running requests on shutdown.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tower::ServiceExt;

use crate::config::{Origin, Origins, TlsFiles};
use crate::error::{Problem, ServerError};

/// A connection is closed if its request head is not complete after this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Of a request's head; past it 431.
const HEAD_BYTES: usize = 64 << 10;
const HEADERS: usize = 100;
const HTTP2_HEAD_BYTES: u32 = 16 << 10;
const HTTP2_STREAMS: u32 = 256;
/// An HTTP/2 connection that is silent for this long is pinged.
const HTTP2_PING: Duration = Duration::from_secs(30);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of a listener's connections.
#[derive(Debug, Clone)]
pub(crate) struct ListenerAccess {
    pub(crate) connections: usize,
    /// A write that makes no progress for this long ends its connection.
    pub(crate) stall: Duration,
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// Certificate and key for TLS.
///
/// # Errors
/// Files that are missing or hold something else.
pub(crate) fn tls(files: &TlsFiles, origins: &Origins) -> Result<Arc<ServerConfig>, ServerError> {
    let bad_cert = |problem: Problem| ServerError::value(origins, "tls.cert", &files.cert.display(), problem);
    let bad_key = |problem: Problem| ServerError::value(origins, "tls.key", &files.key.display(), problem);
    let certificates = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad_cert(error.into()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad_key(error.into()))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(certificates, key));
    let mut config = config.map_err(|error| bad_cert(error.into()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Binds `address` now, so that an address in use is known before a model is loaded.
pub(crate) async fn bind(address: SocketAddr, origin: &Origin) -> Result<TcpListener, ServerError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServerError::Listen { address, source, origin: Box::new(origin.clone()) })
}

/// Accepts until `stop` turns true, then waits until all connections are done.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    access: ListenerAccess,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(access.connections));
    let acceptor = access.tls.clone().map(TlsAcceptor::from);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            _ = stop.wait_for(|&stop| stop) => break,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                let mut stream = TimeoutStream::new(stream);
                stream.set_write_timeout(Some(access.stall));
                let stream = Box::pin(stream);
                let router = router.clone();
                match acceptor.clone() {
                    None => spawn(graceful.watch(connection(stream, peer, router)), peer, permit),
                    Some(acceptor) => {
                        let watcher = graceful.watcher();
                        tokio::spawn(async move {
                            match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                                Ok(Ok(stream)) => spawn(watcher.watch(connection(stream, peer, router)), peer, permit),
                                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                                Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
                            }
                        });
                    }
                }
            }
            Err(error) => {
                // No file descriptor is free, or a connection died in the backlog: neither ends the server.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

fn spawn<F, E>(connection: F, peer: SocketAddr, permit: OwnedSemaphorePermit)
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: std::fmt::Display + Send,
{
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%peer, %error, "connection ended");
        }
        drop(permit);
    });
}

type Accepted = (TcpStream, SocketAddr, OwnedSemaphorePermit);

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> std::io::Result<Accepted> {
    let permit = permits.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // Tokens are small: Nagle's algorithm would hold them back.
    stream.set_nodelay(true)?;
    Ok((stream, peer, permit))
}

fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    router: Router,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = Box<dyn std::error::Error + Send + Sync>> {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_header_list_size(HTTP2_HEAD_BYTES)
        .keep_alive_interval(HTTP2_PING);
    builder.serve_connection(TokioIo::new(stream), service).into_owned()
}
