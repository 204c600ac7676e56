//! The boundary: who may call, and what is served beside the contract.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::Adapter;
use crate::api::adapter_service_server::AdapterServiceServer;
use crate::descriptors;
use crate::listen::Caller;
use crate::reason::{Reason, Refusal};
use crate::server::Server;

/// Above the contract's own limit, so that that one is reported, with a reason.
const LARGEST_RECEIVED: usize = 32 << 20;
const LARGEST_SENT: usize = 17 << 20;

/// Says whether the server serves.
pub struct Healthy(pub watch::Receiver<bool>);

fn answer(is_serving: bool) -> HealthCheckResponse {
    let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status as i32 }
}

type Watched = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for Healthy {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            "" | descriptors::SERVICE => Ok(Response::new(answer(*self.0.borrow()))),
            _ => Err(Refusal::new(Reason::ServiceUnknown, "there is no such service here; '' is all of them").into()),
        }
    }

    type WatchStream = Watched;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watched>, Status> {
        let is_known = matches!(request.into_inner().service.as_str(), "" | descriptors::SERVICE);
        let mut serving = self.0.clone();
        let (sender, answers) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let now = *serving.borrow_and_update();
                let unknown = HealthCheckResponse { status: ServingStatus::ServiceUnknown as i32 };
                let sent = sender.send(Ok(if is_known { answer(now) } else { unknown })).await;
                let next = tokio::select! {
                    changed = serving.changed() => changed.is_ok(),
                    () = sender.closed() => false,
                };
                if sent.is_err() || !next {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}

/// What answers at a port in the clear, for the kubelet, which knows no TLS and no Unix socket: not `Watch`, whose streams
/// stay open, so that who reaches the port could hold many.
pub struct Probed(pub Healthy);

/// No service: served as long as the process answers, also while it drains.
const LIVENESS: &str = "liveness";

#[tonic::async_trait]
impl Health for Probed {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            LIVENESS => Ok(Response::new(answer(true))),
            _ => self.0.check(request).await,
        }
    }

    type WatchStream = Watched;

    async fn watch(&self, _request: Request<HealthCheckRequest>) -> Result<Response<Watched>, Status> {
        Err(unserved("/grpc.health.v1.Health/Watch").into())
    }
}

/// Hands calls to their service, if the caller may make them.
pub struct Boundary<A, R, S> {
    adapter: AdapterServiceServer<Arc<Server<A>>>,
    health: HealthServer<Healthy>,
    reflection: R,
    older_reflection: S,
}

impl<A: Adapter, R, S> Boundary<A, R, S> {
    pub fn new(server: Arc<Server<A>>, serving: watch::Receiver<bool>, reflection: R, older_reflection: S) -> Self {
        let adapter = AdapterServiceServer::new(server);
        Self {
            adapter: adapter.max_decoding_message_size(LARGEST_RECEIVED).max_encoding_message_size(LARGEST_SENT),
            health: HealthServer::new(Healthy(serving)),
            reflection,
            older_reflection,
        }
    }
}

impl<A, R: Clone, S: Clone> Clone for Boundary<A, R, S> {
    fn clone(&self) -> Self {
        Self {
            adapter: self.adapter.clone(),
            health: self.health.clone(),
            reflection: self.reflection.clone(),
            older_reflection: self.older_reflection.clone(),
        }
    }
}

type Calling = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// A service of gRPC.
pub trait Served:
    Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send + 'static>
{
}

impl<T> Served for T where
    T: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send + 'static>
{
}

impl<A: Adapter, R: Served, S: Served> Service<http::Request<Body>> for Boundary<A, R, S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Calling;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // so are all that it hands calls to
    }

    fn call(&mut self, request: http::Request<Body>) -> Calling {
        let path = request.uri().path().to_owned();
        let authorization = request.headers().get(http::header::AUTHORIZATION).map(http::HeaderValue::as_bytes);
        let unknown = Refusal::new(Reason::CallerRefused, "the caller is not known");
        let caller = request.extensions().get::<Caller>().copied();
        let admitted = caller.ok_or(unknown).and_then(|caller| caller.admit(&path, authorization));
        if let Err(refusal) = admitted {
            return rejected(refusal);
        }
        match path.trim_start_matches('/').split_once('/') {
            Some((descriptors::SERVICE, method)) if descriptors::has_method(method) => {
                let answering = self.adapter.call(request);
                Box::pin(async move { answering.await.map(|answer| explained(answer, &path)) })
            }
            Some(("grpc.health.v1.Health", _)) => Box::pin(self.health.call(request)),
            Some(("grpc.reflection.v1.ServerReflection", _)) => Box::pin(self.reflection.call(request)),
            Some(("grpc.reflection.v1alpha.ServerReflection", _)) => Box::pin(self.older_reflection.call(request)),
            _ => rejected(unserved(&path)),
        }
    }
}

fn unserved(path: &str) -> Refusal {
    Refusal::new(Reason::NotImplemented, format!("{path} is not served here"))
}

/// Gives a reason to the status of an RPC of the contract that this crate does not serve, as those of later revisions.
fn explained(answer: http::Response<Body>, path: &str) -> http::Response<Body> {
    let headers = answer.headers();
    let is_unserved = headers.get("grpc-status").is_some_and(|status| status == "12");
    if is_unserved && !headers.contains_key("grpc-status-details-bin") {
        return Status::from(unserved(path)).into_http();
    }
    answer
}

fn rejected(refusal: Refusal) -> Calling {
    Box::pin(std::future::ready(Ok(Status::from(refusal).into_http())))
}
