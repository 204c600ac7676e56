//! Spans of runs and of their tool calls, with the feature `opentelemetry`; else none, and the trace that a run came with is
//! passed on.

use std::future::Future;

use crate::api::{AgentEvent, ExecuteRequest};
use crate::trace::Trace;

/// The span of a run.
pub struct RunSpan {
    /// What those get that work for the run.
    pub trace: Trace,
    #[cfg(feature = "opentelemetry")]
    recorded: Option<otel::Recorded>,
}

#[cfg(not(feature = "opentelemetry"))]
impl RunSpan {
    /// Begins the span of a run that a call with this trace starts.
    pub fn begin(_adapter: &str, _request: &ExecuteRequest, received: Trace) -> Self {
        Self { trace: received }
    }

    /// Takes note of an event as it is written: a tool call that begins or ends, or the end of the run.
    pub fn note(&self, _event: &AgentEvent) {}

    /// Returns what does something within the span.
    pub fn within<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        future
    }
}

#[cfg(feature = "opentelemetry")]
impl RunSpan {
    /// Begins the span of a run that a call with this trace starts.
    pub fn begin(adapter: &str, request: &ExecuteRequest, received: Trace) -> Self {
        let recorded = otel::Recorded::begin(adapter, request, &received);
        let trace = recorded.as_ref().map_or(received, otel::Recorded::trace);
        Self { trace, recorded }
    }

    /// Takes note of an event as it is written: a tool call that begins or ends, or the end of the run.
    pub fn note(&self, event: &AgentEvent) {
        if let Some(recorded) = &self.recorded {
            recorded.note(event);
        }
    }

    /// Returns what does something within the span.
    pub fn within<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        use opentelemetry::context::FutureExt as _;
        future.with_context(self.recorded.as_ref().map(otel::Recorded::context).unwrap_or_default())
    }
}

/// By the API of OpenTelemetry, whose provider the program registers. Names and attributes are those of the conventions for
/// generative AI; no content is recorded.
#[cfg(feature = "opentelemetry")]
mod otel {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use opentelemetry::global::{self, BoxedSpan, BoxedTracer};
    use opentelemetry::trace::{
        Span as _, SpanContext, SpanId, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState, Tracer as _,
    };
    use opentelemetry::{Context, KeyValue};

    use crate::api::agent_event::Body;
    use crate::api::{AgentEvent, ExecuteRequest, FailureKind, Outcome, Result as RunResult, ToolCall, ToolStatus};
    use crate::request::cut;
    use crate::sync::lock;
    use crate::trace::Trace;

    /// Tool calls of one run that may be under way; spans of further ones are not recorded.
    const MOST_OPEN: usize = 1000;
    /// Bytes of the name of a tool.
    const MOST_NAME: usize = 128;

    pub struct Recorded {
        tracer: BoxedTracer,
        /// Holds the span of the run.
        context: Context,
        calls: Mutex<HashMap<String, BoxedSpan>>,
    }

    impl Recorded {
        /// Begins a span; `None` without a provider.
        pub fn begin(adapter: &str, request: &ExecuteRequest, received: &Trace) -> Option<Self> {
            let tracer = global::tracer("dragoman");
            let all = [
                ("gen_ai.operation.name", "invoke_agent"),
                ("gen_ai.agent.name", adapter),
                ("gen_ai.agent.id", request.agent.as_ref().map_or("", |agent| &agent.id)),
                ("gen_ai.request.model", &request.model),
                ("dragoman.run.id", &request.run_id),
            ];
            let (root, remote) = (Context::new(), span_context(received));
            // A parent that is none would be one that is not sampled.
            let parent = if remote.is_valid() { root.with_remote_span_context(remote) } else { root };
            let builder = tracer.span_builder(format!("invoke_agent {adapter}")).with_attributes(present(&all));
            let span = tracer.build_with_context(builder, &parent);
            // Without a provider there is no span, or the one that the call came with.
            let (own, outer) = (span.span_context(), parent.span().span_context().span_id());
            (own.is_valid() && own.span_id() != outer).then(|| Self {
                tracer,
                context: parent.with_span(span),
                calls: Mutex::default(),
            })
        }

        pub fn trace(&self) -> Trace {
            let span = self.context.span().span_context().clone();
            let flags = (span.trace_flags() & TraceFlags::SAMPLED).to_u8();
            let parent = format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id());
            Trace { parent, state: span.trace_state().header() }
        }

        pub fn context(&self) -> Context {
            self.context.clone()
        }

        pub fn note(&self, event: &AgentEvent) {
            match &event.body {
                Some(Body::ToolCall(call)) => self.begin_call(call),
                Some(Body::ToolResult(result)) => {
                    let Some(mut span) = lock(&self.calls).remove(&result.tool_call_id) else { return };
                    let status = ToolStatus::try_from(result.status).unwrap_or_default();
                    if matches!(status, ToolStatus::Failed | ToolStatus::Denied) {
                        span.set_attribute(error_type(status.as_str_name(), "TOOL_STATUS_"));
                        span.set_status(Status::error(""));
                    }
                    span.end();
                }
                Some(Body::Result(result)) => self.end(result),
                _ => {}
            }
        }

        fn begin_call(&self, call: &ToolCall) {
            let mut calls = lock(&self.calls);
            if calls.contains_key(&call.id) || calls.len() >= MOST_OPEN {
                return; // emitted again whenever it changes
            }
            let name = cut(&call.name, MOST_NAME);
            let all = [
                ("gen_ai.operation.name", "execute_tool"),
                ("gen_ai.tool.name", name),
                ("gen_ai.tool.call.id", call.id.as_str()),
            ];
            let builder = self.tracer.span_builder(format!("execute_tool {name}")).with_attributes(present(&all));
            calls.insert(call.id.clone(), self.tracer.build_with_context(builder, &self.context));
        }

        fn end(&self, result: &RunResult) {
            for mut call in std::mem::take(&mut *lock(&self.calls)).into_values() {
                call.end();
            }
            let span = self.context.span();
            let outcome = short(Outcome::try_from(result.outcome).unwrap_or_default().as_str_name(), "OUTCOME_");
            span.set_attributes(present(&[
                ("gen_ai.response.model", &result.model),
                ("gen_ai.provider.name", &result.provider),
                ("dragoman.run.outcome", &outcome),
            ]));
            let tokens = result.usage.as_ref().and_then(|usage| usage.tokens.as_ref());
            let counts = [
                ("gen_ai.usage.input_tokens", tokens.and_then(|tokens| tokens.input)),
                ("gen_ai.usage.output_tokens", tokens.and_then(|tokens| tokens.output)),
            ];
            for (name, count) in counts {
                if let Some(count) = count {
                    span.set_attribute(KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX)));
                }
            }
            if let Some(failure) = &result.failure {
                let kind = FailureKind::try_from(failure.kind).unwrap_or_default();
                span.set_attribute(error_type(kind.as_str_name(), "FAILURE_KIND_"));
                span.set_status(Status::error(""));
            }
            span.end();
        }
    }

    fn present(all: &[(&'static str, &str)]) -> Vec<KeyValue> {
        let known = all.iter().filter(|(_, value)| !value.is_empty());
        known.map(|(name, value)| KeyValue::new(*name, (*value).to_owned())).collect()
    }

    fn short(name: &str, prefix: &str) -> String {
        name.trim_start_matches(prefix).to_ascii_lowercase()
    }

    fn error_type(name: &str, prefix: &str) -> KeyValue {
        KeyValue::new("error.type", short(name, prefix))
    }

    fn span_context(received: &Trace) -> SpanContext {
        let Some([_, trace, span, flags]) = received.parts() else { return SpanContext::NONE };
        SpanContext::new(
            TraceId::from_hex(trace).unwrap_or(TraceId::INVALID),
            SpanId::from_hex(span).unwrap_or(SpanId::INVALID),
            TraceFlags::new(u8::from_str_radix(flags, 16).unwrap_or_default()) & TraceFlags::SAMPLED,
            true,
            received.state.parse::<TraceState>().unwrap_or_default(),
        )
    }

    #[cfg(test)]
    mod tests {
        use std::borrow::Cow;
        use std::collections::BTreeMap;
        use std::sync::Arc;
        use std::time::SystemTime;

        use opentelemetry::InstrumentationScope;
        use opentelemetry::trace::{Span, SpanBuilder, Tracer, TracerProvider};

        use super::*;
        use crate::api::{Failure, TokenCounts, ToolResult, Usage, execute_request};
        use crate::spans::RunSpan;

        const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        const CONTENT: &str = "q4Lm-content-Tz93";

        /// A span that has ended.
        #[derive(Debug, PartialEq)]
        struct Ended {
            name: String,
            parent: String,
            has_failed: bool,
            attributes: BTreeMap<String, String>,
        }

        /// A provider that keeps the spans that have ended.
        #[derive(Clone, Default)]
        struct Recorder(Arc<Mutex<Vec<Ended>>>);

        struct Recording {
            to: Recorder,
            context: SpanContext,
            ended: Option<Ended>,
        }

        impl TracerProvider for Recorder {
            type Tracer = Self;

            fn tracer_with_scope(&self, _scope: InstrumentationScope) -> Self {
                self.clone()
            }
        }

        impl Tracer for Recorder {
            type Span = Recording;

            fn build_with_context(&self, builder: SpanBuilder, parent: &Context) -> Recording {
                let outer = parent.span().span_context().clone();
                assert_eq!(
                    parent.has_active_span(),
                    outer.is_valid(),
                    "a sampler takes it for one that is not sampled"
                );
                let id = SpanId::from(u64::try_from(builder.name.len()).expect("it is short"));
                let context =
                    SpanContext::new(outer.trace_id(), id, outer.trace_flags(), false, outer.trace_state().clone());
                let ended = Ended {
                    name: builder.name.into_owned(),
                    parent: outer.span_id().to_string(),
                    has_failed: false,
                    attributes: BTreeMap::new(),
                };
                let mut span = Recording { to: self.clone(), context, ended: Some(ended) };
                span.set_attributes(builder.attributes.unwrap_or_default());
                span
            }
        }

        impl Span for Recording {
            fn add_event_with_timestamp<T>(&mut self, _name: T, _timestamp: SystemTime, _attributes: Vec<KeyValue>)
            where
                T: Into<Cow<'static, str>>,
            {
            }

            fn span_context(&self) -> &SpanContext {
                &self.context
            }

            fn is_recording(&self) -> bool {
                self.ended.is_some()
            }

            fn set_attribute(&mut self, attribute: KeyValue) {
                if let Some(span) = &mut self.ended {
                    span.attributes.insert(attribute.key.to_string(), attribute.value.to_string());
                }
            }

            fn set_status(&mut self, status: Status) {
                if let Some(span) = &mut self.ended {
                    span.has_failed = matches!(status, Status::Error { .. });
                }
            }

            fn update_name<T: Into<Cow<'static, str>>>(&mut self, _name: T) {}

            fn add_link(&mut self, _span_context: SpanContext, _attributes: Vec<KeyValue>) {}

            fn end_with_timestamp(&mut self, _timestamp: SystemTime) {
                lock(&self.to.0).extend(self.ended.take());
            }
        }

        fn ended(name: &str, parent: &str, has_failed: bool, attributes: &[(&str, &str)]) -> Ended {
            let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Ended { name: name.into(), parent: parent.into(), has_failed, attributes }
        }

        #[test]
        fn a_run_and_its_tool_calls_are_spans_without_content() {
            let received = Trace::parse(PARENT, "vendor=1");
            let task = Some(execute_request::Task::Prompt(CONTENT.into()));
            let request = ExecuteRequest { run_id: "r".into(), task, ..Default::default() };
            let unrecorded = RunSpan::begin("test", &request, received.clone());
            assert_eq!(unrecorded.trace, received); // no provider is registered yet

            let recorder = Recorder::default();
            global::set_tracer_provider(recorder.clone());
            RunSpan::begin("test", &request, Trace::default());
            let span = RunSpan::begin("test", &request, received);
            let own = "0000000000000011";
            assert_eq!(span.trace.parent, format!("{}-{own}-01", &PARENT[..35]));
            assert_eq!(span.trace.state, "vendor=1");
            let active = run(span.within(async { Context::current().span().span_context().span_id() }));
            assert_eq!(active.to_string(), own);

            let call = |id: &str, name: &str| {
                Body::ToolCall(ToolCall {
                    id: id.into(),
                    name: name.into(),
                    input_json: CONTENT.into(),
                    ..Default::default()
                })
            };
            let failed = ToolStatus::Failed as i32;
            let failure =
                Failure { kind: FailureKind::ModelRefused as i32, message: CONTENT.into(), ..Default::default() };
            let tokens = TokenCounts { input: Some(7), output: Some(0), ..Default::default() };
            for body in [
                call("1", "Bash"),
                call("1", "Bash"), // again, as when its input grows
                Body::ToolResult(ToolResult { tool_call_id: "1".into(), status: failed, ..Default::default() }),
                call("2", "Read"),
                Body::Result(RunResult {
                    outcome: Outcome::Failed as i32,
                    failure: Some(failure),
                    model: "m".into(),
                    summary: CONTENT.into(),
                    usage: Some(Usage { tokens: Some(tokens), ..Default::default() }),
                    ..Default::default()
                }),
            ] {
                span.note(&body.into());
            }
            let tool = ("gen_ai.operation.name", "execute_tool");
            assert_eq!(
                *lock(&recorder.0),
                [
                    ended(
                        "execute_tool Bash",
                        own,
                        true,
                        &[tool, ("gen_ai.tool.name", "Bash"), ("gen_ai.tool.call.id", "1"), ("error.type", "failed")]
                    ),
                    ended(
                        "execute_tool Read",
                        own,
                        false,
                        &[tool, ("gen_ai.tool.name", "Read"), ("gen_ai.tool.call.id", "2")]
                    ),
                    ended(
                        "invoke_agent test",
                        "b7ad6b7169203331",
                        true,
                        &[
                            ("gen_ai.operation.name", "invoke_agent"),
                            ("gen_ai.agent.name", "test"),
                            ("dragoman.run.id", "r"),
                            ("gen_ai.response.model", "m"),
                            ("gen_ai.usage.input_tokens", "7"),
                            ("gen_ai.usage.output_tokens", "0"),
                            ("dragoman.run.outcome", "failed"),
                            ("error.type", "model_refused"),
                        ]
                    ),
                ]
            );
        }

        /// Runs what waits for nothing.
        fn run<F: Future>(future: F) -> F::Output {
            tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
        }
    }
}
