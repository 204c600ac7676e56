//! An adapter on the generated stubs alone: it streams its prompt back, and does nothing of what a router does for an adapter
//! that declares no duties.

use dragoman_adapter::api::adapter_service_server::{AdapterService, AdapterServiceServer};
use dragoman_adapter::api::{self, AgentEvent, DescribeRequest, DescribeResponse, ExecuteRequest, Outcome};
use dragoman_adapter::api::{agent_event::Body, execute_request::Task, text::Content};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{BoxStream, tokio_stream};
use tonic::{Request, Response, Status};

struct StreamText;

#[tonic::async_trait]
impl AdapterService for StreamText {
    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let (adapter, instance_id) = ("streamtext".into(), std::process::id().to_string());
        Ok(Response::new(DescribeResponse { adapter, revision: 1, instance_id, ..Default::default() }))
    }

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<BoxStream<AgentEvent>>, Status> {
        let ExecuteRequest { run_id, task, .. } = request.into_inner();
        let Some(Task::Prompt(prompt)) = task else { return Err(Status::invalid_argument("prompt: is required")) };
        let mut bodies = vec![Body::Started(api::Started { adapter: "streamtext".into(), ..Default::default() })];
        let mut offset = 0;
        for word in prompt.split_inclusive(' ') {
            let content = Some(Content::Delta(word.into()));
            bodies.push(Body::Text(api::Text { item_id: "answer".into(), offset, content, ..Default::default() }));
            offset += word.len() as u64;
        }
        bodies.push(Body::Result(api::Result { outcome: Outcome::Succeeded as i32, ..Default::default() }));
        let id = run_id.parse().map_err(|_| Status::invalid_argument("run_id: must be ASCII"))?;
        let events = (1..).zip(bodies).map(move |(sequence, body)| {
            let (run_id, body) = (run_id.clone(), Some(body));
            Ok(AgentEvent { run_id, sequence, attempt: 1, body, ..Default::default() })
        });
        let mut response: Response<BoxStream<AgentEvent>> = Response::new(Box::pin(tokio_stream::iter(events)));
        response.metadata_mut().insert("dragoman-run-id", id);
        Ok(response)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::var("DRAGOMAN_LISTEN")?;
    let listener = tokio::net::UnixListener::bind(address.trim_start_matches("unix:"))?;
    let (_health, health_service) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder().add_service(AdapterServiceServer::new(StreamText));
    Ok(server.add_service(health_service).serve_with_incoming(UnixListenerStream::new(listener)).await?)
}
