//! A run's questions: asked and answered once, expired to their default, repeated to readers that attach.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::api::agent_event::Body;
use crate::api::{
    AgentEvent, EventOrigin, InputAnswer, InputKind, InputOption, InputOptionKind, InputRequest, InputResolution,
    InputResolved, InputSubject, RunPhase, Severity, Started, State as PhaseState,
};
use crate::core::{Core, Phase, State};
use crate::outgoing;
use crate::permissions::{Policy, decide};
use crate::reason::{Reason, Refusal};
use crate::redact::MASK;
use crate::run::{Ended, Error, Run};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// What timestamps and timers can do without end.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How an input request ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resolution {
    /// Whether it was answered, expired or dropped.
    pub how: InputResolution,
    /// Empty if it was dropped.
    pub answer: InputAnswer,
    /// Where `input_resolved` stands.
    pub sequence: u64,
}

/// What a caller is shown of a permission request beside its subject. All of it may be empty.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The question, for people.
    pub title: String,
    /// Details, for people.
    pub description: String,
    /// The tool's input as JSON text, which the answer may replace.
    pub editable_input_json: String,
}

/// What an agent may do with an action.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Decision {
    /// Whether it may do it.
    pub is_allowed: bool,
    /// What the caller says to the agent; may be empty.
    pub message: String,
    /// The tool's input as the caller changed it, as JSON text; empty: unchanged.
    pub updated_input_json: String,
    /// The caller allows similar actions too, from now on.
    pub is_for_all: bool,
}

struct Open {
    /// As it was shown: redacted.
    request: InputRequest,
    /// A secret is hidden in the input that the answer may change.
    hides_input: bool,
    expires: Instant,
    answered: oneshot::Sender<Resolution>,
}

struct Resolved {
    resolution: Resolution,
    /// The answer as it is recorded: redacted.
    shown: InputAnswer,
}

/// The questions of a run.
#[derive(Default)]
pub struct Inputs {
    open: Vec<Open>,
    resolved: HashMap<String, Resolved>,
    asked: usize,
}

impl Inputs {
    /// Returns when the next question expires.
    pub fn next(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.expires).min()
    }
}

/// Returns how long a question waits for its answer.
pub fn timeout_of(request: &crate::api::ExecuteRequest) -> Duration {
    let asked = request.permissions.as_ref().and_then(|permissions| permissions.request_timeout);
    crate::request::duration(asked).unwrap_or(DEFAULT_TIMEOUT).min(LONGEST_TIMEOUT)
}

impl Core {
    fn ask(&self, mut request: InputRequest) -> Result<(String, oneshot::Receiver<Resolution>), Error> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase == Phase::Ended || self.is_stopping() {
            return Err(Ended.into()); // no answers are awaited any more
        }
        self.flush_joined(state);
        if state.phase == Phase::Initial {
            self.start(state, Started::default());
        }
        state.inputs.asked += 1;
        if request.id.is_empty() {
            request.id = format!("input-{}", state.inputs.asked);
        }
        let id = request.id.clone();
        if state.inputs.resolved.contains_key(&id) || state.inputs.open.iter().any(|open| open.request.id == id) {
            return Err(Error::Fault(format!("the ID {id:?} of an input request is not unique").into()));
        }
        request.expires_at = Some((SystemTime::now() + self.input_timeout).into());
        if request.default_answer.is_none() {
            request.default_answer = Some(default_answer(&request));
        }
        let editable = request.editable_input_json.clone();
        let mut event = event(Body::InputRequest(request), EventOrigin::Agent);
        outgoing::redact(&mut event, &self.redactor);
        let Some(Body::InputRequest(shown)) = event.body.clone() else { unreachable!("it was one") };
        self.write(state, event);
        let (answered, answer) = oneshot::channel();
        let hides_input = shown.editable_input_json != editable;
        let expires = Instant::now() + self.input_timeout;
        state.inputs.open.push(Open { request: shown, hides_input, expires, answered });
        if state.inputs.open.len() == 1 {
            state.clocks.wait(Instant::now());
            self.phase(state, PhaseState { phase: RunPhase::WaitingForInput as i32, ..PhaseState::default() });
        }
        self.awake();
        Ok((id, answer))
    }

    /// Answers a question, and returns the sequence of `input_resolved`.
    pub fn answer(&self, id: &str, answer: InputAnswer, responder: String) -> Result<u64, Refusal> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(at) = state.inputs.open.iter().position(|open| open.request.id == id) else {
            return answered_before(state, id, &answer);
        };
        let open = &state.inputs.open[at];
        check_answer(&open.request, &answer, open.hides_input)?;
        Ok(self.resolve(state, at, InputResolution::Answered, answer, responder))
    }

    /// No answers are awaited any more.
    pub fn drop_inputs(&self, state: &mut State) {
        while !state.inputs.open.is_empty() {
            self.resolve(state, 0, InputResolution::Dropped, InputAnswer::default(), String::new());
        }
    }

    /// Lets the questions expire whose time is over.
    pub fn expire_inputs(&self, state: &mut State, now: Instant) {
        while let Some(at) = state.inputs.open.iter().position(|open| open.expires <= now) {
            let default = state.inputs.open[at].request.default_answer.clone().unwrap_or_default();
            self.resolve(state, at, InputResolution::Expired, default, String::new());
        }
    }

    /// Returns the open questions as events, for a reader that attaches.
    pub fn pending(&self, state: &State) -> Vec<AgentEvent> {
        let copies = state.inputs.open.iter().map(|open| {
            let mut copy = event(Body::InputRequest(open.request.clone()), EventOrigin::Adapter);
            self.address(state, &mut copy);
            copy
        });
        copies.collect()
    }

    fn withdraw(&self, id: &str) {
        let mut guard = self.lock();
        if let Some(at) = guard.inputs.open.iter().position(|open| open.request.id == id) {
            self.resolve(&mut guard, at, InputResolution::Dropped, InputAnswer::default(), String::new());
        }
    }

    fn resolve(
        &self,
        state: &mut State,
        at: usize,
        how: InputResolution,
        answer: InputAnswer,
        responder: String,
    ) -> u64 {
        let open = state.inputs.open.remove(at);
        let id = open.request.id;
        let shown = Some(answer.clone()).filter(|_| how != InputResolution::Dropped);
        let resolved = InputResolved { id: id.clone(), resolution: how as i32, answer: shown, responder };
        let origin = if how == InputResolution::Answered { EventOrigin::Operator } else { EventOrigin::Adapter };
        let mut event = event(Body::InputResolved(resolved), origin);
        outgoing::redact(&mut event, &self.redactor);
        let shown = match &event.body {
            Some(Body::InputResolved(resolved)) => resolved.answer.clone().unwrap_or_default(),
            _ => InputAnswer::default(),
        };
        let sequence = self.write(state, event);
        let resolution = Resolution { how, answer, sequence };
        state.inputs.resolved.insert(id, Resolved { resolution: resolution.clone(), shown });
        if state.inputs.open.is_empty() {
            state.clocks.resume(Instant::now());
            if !self.is_stopping() && state.phase == Phase::Attempt {
                self.phase(state, PhaseState { phase: RunPhase::Running as i32, ..PhaseState::default() });
            }
        }
        let _ = open.answered.send(resolution); // or the agent does not wait for it any more
        self.awake();
        sequence
    }
}

fn event(body: Body, origin: EventOrigin) -> AgentEvent {
    AgentEvent { body: Some(body), origin: origin as i32, ..AgentEvent::default() }
}

fn answered_before(state: &State, id: &str, answer: &InputAnswer) -> Result<u64, Refusal> {
    let refused = |reason, message: &str| Err(Refusal::new(reason, message));
    let Some(Resolved { resolution, shown }) = state.inputs.resolved.get(id) else {
        return refused(Reason::RequestNotFound, &format!("the run has no request {id:?}"));
    };
    match resolution.how {
        InputResolution::Expired => refused(Reason::RequestExpired, "the request has expired; its default was taken"),
        InputResolution::Dropped if state.phase == Phase::Ended => {
            refused(Reason::RunFinished, "the run is over, and the request with it")
        }
        InputResolution::Dropped => {
            refused(Reason::RequestExpired, "the agent no longer waits for an answer to this request")
        }
        _ if resolution.answer == *answer => Ok(resolution.sequence),
        _ => Err(Refusal::new(Reason::AlreadyResolved, "the request was answered otherwise")
            .with("answer", answer_json(shown))),
    }
}

/// Returns an answer as the contract's JSON.
fn answer_json(answer: &InputAnswer) -> String {
    let InputAnswer { option_ids, text, value_json, updated_input_json, message } = answer;
    let texts =
        [("text", text), ("valueJson", value_json), ("updatedInputJson", updated_input_json), ("message", message)];
    let mut fields: Map<String, Value> = texts
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| (name.into(), text.clone().into()))
        .collect();
    if !option_ids.is_empty() {
        fields.insert("optionIds".to_owned(), option_ids.clone().into());
    }
    Value::Object(fields).to_string()
}

/// Returns the answer that applies when a question expires: a rejection where there is one, else none.
fn default_answer(request: &InputRequest) -> InputAnswer {
    let rejecting = [InputOptionKind::RejectOnce, InputOptionKind::RejectAlways];
    let found = rejecting.iter().find_map(|kind| request.options.iter().find(|option| option.kind() == *kind));
    InputAnswer {
        option_ids: found.map(|option| option.id.clone()).into_iter().collect(),
        message: "No answer arrived in time.".to_owned(),
        ..InputAnswer::default()
    }
}

fn check_answer(request: &InputRequest, answer: &InputAnswer, hides_input: bool) -> Result<(), Refusal> {
    let unfit = |field: &str, description: String| {
        Err(Refusal::field(Reason::InvalidAnswer, format!("answer.{field}"), description))
    };
    let known = || request.options.iter().map(|option| option.id.as_str()).collect::<Vec<_>>().join(", ");
    if !request.options.is_empty() && answer.option_ids.is_empty() {
        return unfit("option_ids", format!("choose one of {}", known()));
    }
    if answer.option_ids.len() > 1 && !request.multiple {
        return unfit("option_ids", "choose one option only".to_owned());
    }
    let is_known = |id: &&String| request.options.iter().any(|option| option.id == **id);
    if let Some(strange) = answer.option_ids.iter().find(|id| !is_known(id)) {
        return unfit("option_ids", format!("{strange:?} is not an option; choose one of {}", known()));
    }
    if !answer.updated_input_json.is_empty() {
        if request.editable_input_json.is_empty() {
            return unfit("updated_input_json", "this request's input cannot be changed".to_owned());
        }
        if !matches!(serde_json::from_str(&answer.updated_input_json), Ok(Value::Object(_))) {
            return unfit("updated_input_json", "a tool's input is a JSON object".to_owned());
        }
        if hides_input && answer.updated_input_json.contains(MASK) {
            // The agent would get the mask in place of the secret.
            let description =
                format!("it still has {MASK} where a secret is hidden; give the value, or leave the input");
            return unfit("updated_input_json", description);
        }
    }
    match request.kind() {
        InputKind::Text if answer.text.is_empty() => unfit("text", "must not be empty".to_owned()),
        InputKind::Schema if serde_json::from_str::<Value>(&answer.value_json).is_err() => {
            unfit("value_json", "not JSON".to_owned())
        }
        _ => Ok(()),
    }
}

/// A question that is withdrawn when its asker leaves.
struct Asked {
    core: Arc<Core>,
    id: String,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.core.withdraw(&self.id);
    }
}

impl Run {
    /// Asks the caller, and waits for the answer, or for what stands for it when the question expires or the run is to stop.
    /// Call it only in a run that is interactive; see [`Run::permit`] for permissions. `id`, `expires_at` and
    /// `default_answer` are filled in. Dropped before its end, it withdraws the question.
    ///
    /// # Errors
    ///
    /// The run has ended or is to stop, or the ID is not unique.
    pub async fn ask(&self, request: InputRequest) -> Result<Resolution, Error> {
        let (id, answer) = self.core.ask(request)?;
        let _asked = Asked { core: Arc::clone(&self.core), id };
        answer.await.map_err(|_| Ended.into())
    }

    /// Decides about an action of the agent, as the permissions of the run say: by a rule, or by asking the caller. In a run
    /// that is not interactive no caller is asked, and what no rule allows is denied.
    ///
    /// # Errors
    ///
    /// The run has ended or is to stop.
    pub async fn permit(&self, subject: InputSubject, question: Question) -> Result<Decision, Error> {
        let name = subject.tool_name.clone();
        self.core.begin()?;
        match decide(self.request.permissions.as_ref(), &subject, &self.settings.cwd) {
            Policy::Allow => return Ok(Decision { is_allowed: true, ..Decision::default() }),
            Policy::Deny => {
                let shown = if name.is_empty() { "An action" } else { &name };
                let message = format!("{shown} was denied by the permissions of the run.");
                self.notice(Severity::Warning, "permission_denied", message);
                let message = "The permissions of this run do not allow it.".to_owned();
                return Ok(Decision { message, ..Decision::default() });
            }
            Policy::Ask => {}
        }
        let option = |id: &str, kind: InputOptionKind, label: &str| InputOption {
            id: id.to_owned(),
            kind: kind as i32,
            label: label.to_owned(),
            ..InputOption::default()
        };
        let default_title =
            || format!("{} asks for permission", if name.is_empty() { "The agent" } else { name.as_str() });
        let Resolution { how, answer, .. } = self
            .ask(InputRequest {
                kind: InputKind::Permission as i32,
                title: Some(question.title).filter(|title| !title.is_empty()).unwrap_or_else(default_title),
                description: question.description,
                editable_input_json: question.editable_input_json,
                subject: Some(subject),
                options: vec![
                    option("allow", InputOptionKind::AllowOnce, "Allow"),
                    option("reject", InputOptionKind::RejectOnce, "Reject"),
                    option("allow_always", InputOptionKind::AllowAlways, "Allow in this run"),
                ],
                ..InputRequest::default()
            })
            .await?;
        let chosen = answer.option_ids.first().map_or("", String::as_str);
        Ok(Decision {
            is_allowed: how == InputResolution::Answered && chosen.starts_with("allow"),
            is_for_all: chosen == "allow_always",
            message: answer.message,
            updated_input_json: answer.updated_input_json,
        })
    }
}
