//! Listening sockets: accept under a connection limit, serve HTTP/1.1 and HTTP/2, finish what runs on shutdown.
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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt;

use crate::error::ServerError;

/// A client that has not sent its request head in this time is let go.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Binds `address` now, so that an address in use is known before a model is loaded.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })
}

/// Accepts until `stop` turns true, then waits until all connections are done.
pub(crate) async fn serve(listener: TcpListener, router: Router, connections: usize, mut stop: watch::Receiver<bool>) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(connections));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            _ = stop.wait_for(|&stop| stop) => break,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                let connection = graceful.watch(connection(stream, peer, router.clone()));
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%peer, %error, "connection ended");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of file descriptors, or a connection that died in the backlog: neither ends the server.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

type Accepted = (TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit);

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> std::io::Result<Accepted> {
    let permit = permits.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // Tokens are small and must not wait for each other.
    stream.set_nodelay(true)?;
    Ok((stream, peer, permit))
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = Box<dyn std::error::Error + Send + Sync>> {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    builder.serve_connection(TokioIo::new(stream), service).into_owned()
}
