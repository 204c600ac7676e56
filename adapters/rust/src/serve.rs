//! A process that serves an adapter.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::listen::{Listener, OverTcp, OverUnix, listen};
use crate::server::Server;
use crate::tls::OverTls;
use crate::wire::Boundary;
use crate::{Adapter, descriptors, guard, json_log};

const GRACE: Duration = Duration::from_secs(15);
/// That connections may still be used once all streams have ended.
const CLOSING: Duration = Duration::from_secs(1);

/// Serves an adapter where the variable `DRAGOMAN_LISTEN` says. It ends on SIGTERM or SIGINT, once its runs have; a second
/// signal ends these at once. It must come first in `main`: a run's guard is this very program, started again, and this is
/// what it does then.
pub fn serve<A: Adapter>(adapter: A) -> ExitCode {
    if guard::run_if_stage() {
        return ExitCode::SUCCESS;
    }
    let served = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("start the runtime: {error}"))
        .and_then(|runtime| {
            let served = runtime.block_on(serve_until_asked(adapter));
            runtime.shutdown_timeout(CLOSING);
            served
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            json_log::error("adapter failed", &[("error", &error)]);
            ExitCode::FAILURE
        }
    }
}

async fn serve_until_asked<A: Adapter>(adapter: A) -> Result<(), String> {
    let address = std::env::var("DRAGOMAN_LISTEN").unwrap_or_default();
    if address.is_empty() {
        return Err("nowhere to listen: set DRAGOMAN_LISTEN, e.g. to unix:$HOME/agent.sock".to_owned());
    }
    let (serving, is_serving) = watch::channel(true);
    let server = Server::new(adapter, serving)?;
    let listener = listen(&address).await?;
    let failed = |error: std::io::Error| format!("watch for signals: {error}");
    let mut asked = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(terminated), Ok(interrupted)] = &mut asked else {
        return Err(asked.into_iter().filter_map(Result::err).map(failed).collect());
    };
    let reflection = || {
        let builder =
            tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(descriptors::FILES);
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |error: tonic_reflection::server::Error| format!("read the descriptors: {error}");
    let boundary = Boundary::new(
        Arc::clone(&server),
        is_serving,
        reflection().build_v1().map_err(broken)?,
        reflection().build_v1alpha().map_err(broken)?,
    );
    let builder = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)));
    json_log::info("adapter ready", &[("adapter", server.name()), ("listen", &address)]);
    let (closing, closed) = watch::channel(false);
    let is_over = async move {
        let mut closed = closed;
        let _ = closed.wait_for(|is_closed| *is_closed).await; // or the sender is gone
    };
    let serving = async {
        match listener {
            Listener::Unix(listener, _lock) => {
                builder.serve_with_incoming_shutdown(boundary, OverUnix(listener), is_over).await
            }
            Listener::Tcp(listener) => builder.serve_with_incoming_shutdown(boundary, OverTcp(listener), is_over).await,
            Listener::Tls(listener, tls) => {
                builder.serve_with_incoming_shutdown(boundary, OverTls::new(listener, tls), is_over).await
            }
        }
    };
    let draining = async {
        either(terminated, interrupted).await;
        json_log::info("adapter draining", &[]);
        tokio::select! {
            () = server.drain(GRACE) => {}
            () = async { loop { either(terminated, interrupted).await; server.hurry(); } } => {}
        }
        closing.send_replace(true);
        tokio::time::sleep(CLOSING).await; // a watcher of health does not leave
    };
    tokio::select! {
        served = serving => served.map_err(|error| format!("serve {address}: {error}"))?,
        () = draining => {}
    }
    json_log::info("adapter stopped", &[]);
    Ok(())
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
