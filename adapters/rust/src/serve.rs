//! A process that serves an adapter.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tonic_health::pb::health_server::HealthServer;

use crate::listen::{Listener, OverTcp, OverUnix, listen};
use crate::server::Server;
use crate::tls::OverTls;
use crate::wire::{Boundary, Healthy, Probed};
use crate::{Adapter, descriptors, guard, json_log};

const GRACE: Duration = Duration::from_secs(15);
/// That connections may still be used once all streams have ended.
const CLOSING: Duration = Duration::from_secs(1);
/// Bytes of a request that holds the name of a service.
const LARGEST_PROBE: usize = 4096;

/// Must come first in a `main` that does anything before [`serve`], as one that sets up a provider of traces: a run's guard is
/// this very program, started again, and this is what it does then. It does not return in a guard, and does nothing elsewhere.
pub fn init() {
    if guard::run_if_stage() {
        std::process::exit(0);
    }
}

/// Serves an adapter where the variable `DRAGOMAN_LISTEN` says. It ends on SIGTERM or SIGINT, once its runs have; a second
/// signal ends these at once. They may continue for the seconds in `DRAGOMAN_DRAIN_GRACE` before they are cancelled.
/// `DRAGOMAN_HEALTH` is the address of a port in the clear that serves health alone, for probes.
///
/// It must come first in `main`, or after [`init`]: a run's guard is this very program, started again, and this is what it does
/// then. It returns where the adapter was served, and not in a guard: a provider of traces is to be shut down after it.
pub fn serve<A: Adapter>(adapter: A) -> ExitCode {
    init();
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
    let allowed = drain_grace(&std::env::var("DRAGOMAN_DRAIN_GRACE").unwrap_or_default())?;
    let (serving, is_serving) = watch::channel(true);
    let server = Server::new(adapter, serving)?;
    let probed = std::env::var("DRAGOMAN_HEALTH").unwrap_or_default();
    if !probed.is_empty() {
        serve_health(&probed, is_serving.clone()).await?; // until the runtime ends
    }
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
            () = async { server.settle(allowed).await; server.drain(GRACE).await } => {}
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

/// Answers probes of health in the clear, at a port of loopback or at "host:port".
async fn serve_health(address: &str, is_serving: watch::Receiver<bool>) -> Result<(), String> {
    let is_port = address.parse::<u16>().is_ok();
    let target = if is_port { format!("127.0.0.1:{address}") } else { address.to_owned() };
    let failed = |error: std::io::Error| format!("health cannot be served at {address}: {error}");
    let listener = TcpListener::bind(target).await.map_err(failed)?;
    let builder = tonic::transport::Server::builder().max_concurrent_streams(8);
    let health = HealthServer::new(Probed(Healthy(is_serving))).max_decoding_message_size(LARGEST_PROBE);
    tokio::spawn(async move {
        let never = std::future::pending();
        if let Err(error) = builder.serve_with_incoming_shutdown(health, OverTcp(listener), never).await {
            json_log::error("health is served no more", &[("error", &error.to_string())]);
        }
    });
    Ok(())
}

/// Returns how long live runs may continue once the adapter is to end.
fn drain_grace(text: &str) -> Result<Duration, String> {
    let seconds = if text.trim().is_empty() { Some(0.0) } else { text.trim().parse::<f64>().ok() };
    let grace = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    grace.ok_or_else(|| format!("DRAGOMAN_DRAIN_GRACE={text:?} is no number of seconds; e.g. 300"))
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_guard_does_not_come_back_from_init() {
        let is_guard = std::env::args_os().next().is_some_and(|name| name == "dragoman-guard");
        init();
        assert!(!is_guard, "a guard has come back");
        // This test once more, by a guard, which ends at once, as its standard input is no socket.
        let own = std::env::current_exe().expect("a program");
        let test = ["--exact", "serve::tests::a_guard_does_not_come_back_from_init", "--nocapture"];
        let guard = Command::new(own).arg0("dragoman-guard").args(test).stdin(Stdio::null()).output();
        let guard = guard.expect("it starts");
        let printed = String::from_utf8_lossy(&guard.stdout);
        assert!(guard.status.success() && !printed.contains("test result"), "{printed}");
    }

    #[test]
    fn a_drain_grace_is_a_number_of_seconds() {
        for (text, millis) in [("", 0), ("0", 0), (" 2.5 ", 2500), ("300", 300_000)] {
            assert_eq!(drain_grace(text), Ok(Duration::from_millis(millis)), "{text:?}");
        }
        for text in ["5m", "-1", "nan", "inf", "1e300", "x"] {
            assert!(drain_grace(text).is_err(), "{text:?}");
        }
    }
}
