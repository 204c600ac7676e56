//! What is done to an event on its way out: secrets are taken out, and what is too large is cut.

use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, ReflectMessage as _, Value};

use crate::api::AgentEvent;
use crate::api::agent_event::Body;
use crate::descriptors;
use crate::redact::Redactor;
use crate::request::cut;

pub const MAX_EVENT: usize = 1 << 20;
/// Of a piece of a text.
pub const MAX_PIECE: usize = 256 << 10;
/// Room for what is written after a cut.
const SPARE: usize = 4096;
/// Of a text that is looked through for secrets; no event holds as much.
const MAX_LEAF: usize = 2 << 20;
/// Of an agent's own frame.
const MAX_FRAME: usize = 64 << 10;

/// Takes the secrets out of every text of an event but IDs and session handles. Returns the bytes of texts that no event
/// could hold, which it has cut.
pub fn redact(event: &mut AgentEvent, redactor: &Redactor) -> usize {
    let mut removed = 0;
    if !redactor.is_empty() {
        let mut walk = Redaction { redactor, has_changed: false, cut: 0 };
        let mut dynamic = descriptors::dynamic(event, "AgentEvent");
        for (field, value) in dynamic.fields_mut() {
            let is_body = field.containing_oneof().is_some_and(|oneof| oneof.name() == "body");
            if is_body || field.name() == "native" {
                walk.value(&field, value);
            }
        }
        removed = walk.cut;
        if walk.has_changed || removed > 0 {
            *event = dynamic.transcode_to().expect("it was that message");
            event.redacted |= walk.has_changed;
        }
    }
    if let Some(native) = &mut event.native {
        let kept = cut(&native.text, MAX_FRAME).len();
        native.truncated_bytes += (native.text.len() - kept) as u64;
        native.text.truncate(kept);
    }
    removed
}

struct Redaction<'a> {
    redactor: &'a Redactor,
    has_changed: bool,
    cut: usize,
}

impl Redaction<'_> {
    fn message(&mut self, message: &mut DynamicMessage) {
        if message.descriptor().full_name() == "dragoman.v1.SessionHandle" {
            return; // it comes back as it left
        }
        for (field, value) in message.fields_mut() {
            self.value(&field, value);
        }
    }

    fn value(&mut self, field: &FieldDescriptor, value: &mut Value) {
        match value {
            Value::Message(inner) => self.message(inner),
            Value::List(items) => items.iter_mut().for_each(|item| self.value(field, item)),
            Value::Map(entries) => entries.values_mut().for_each(|item| self.value(field, item)),
            Value::String(text) if !is_id(field.name()) => self.text(text),
            Value::Bytes(data) => {
                if let Some(shown) = self.redactor.bytes(data) {
                    *data = shown.into();
                    self.has_changed = true;
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &mut String) {
        if text.len() > MAX_LEAF {
            let before = text.len();
            let kept = cut(text, MAX_LEAF);
            let kept = self.redactor.undecided(kept); // no search finds half a secret
            text.truncate(kept);
            self.cut += before - kept;
        }
        if let std::borrow::Cow::Owned(shown) = self.redactor.text(text) {
            *text = shown;
            self.has_changed = true;
        }
    }
}

fn is_id(name: &str) -> bool {
    name == "id" || name.ends_with("_id") || name.ends_with("_ids")
}

/// Cuts the largest texts of an event until it has at most 1 MiB, and returns the bytes that it cut.
pub fn fit(event: &mut AgentEvent) -> usize {
    const MOST: usize = MAX_EVENT - SPARE;
    if event.encoded_len() <= MOST {
        return 0;
    }
    let mut removed = 0;
    if let Some(Body::Log(entry)) = &mut event.body
        && !entry.raw.is_empty()
    {
        // Both say the same, and a byte that is no UTF-8 takes three in the text.
        let kept = entry.raw.len().min(MAX_EVENT / 4 - SPARE);
        removed += entry.raw.len() - kept;
        entry.raw.truncate(kept);
        entry.text = String::from_utf8_lossy(&entry.raw).into_owned();
    }
    let mut dynamic = descriptors::dynamic(event, "AgentEvent");
    loop {
        let size = dynamic.encoded_len();
        let body = dynamic.fields_mut().find(|(field, _)| field.containing_oneof().is_some());
        let Some((_, Value::Message(body))) = body.filter(|_| size > MOST) else { break };
        let once = cut_largest(body, size - MOST);
        if once == 0 {
            break;
        }
        removed += once;
    }
    *event = dynamic.transcode_to().expect("it was that message");
    removed
}

/// Counts bytes that were cut in the body's `truncated_bytes`, or returns them if the body has none.
pub fn count_cut(event: &mut AgentEvent, cut: usize) -> usize {
    let counter = match &mut event.body {
        Some(Body::Text(body)) => &mut body.truncated_bytes,
        Some(Body::Thinking(body)) => &mut body.truncated_bytes,
        Some(Body::Log(body)) => &mut body.truncated_bytes,
        Some(Body::ToolCall(body)) => &mut body.truncated_bytes,
        Some(Body::ToolResult(body)) => &mut body.truncated_bytes,
        Some(Body::Message(body)) => &mut body.truncated_bytes,
        Some(Body::FileChange(body)) => &mut body.truncated_bytes,
        _ => return cut,
    };
    *counter += cut as u64;
    0
}

/// Cuts the longest text or list of a message, and returns the bytes that it cut.
fn cut_largest(message: &mut DynamicMessage, excess: usize) -> usize {
    let Some((_, value)) = message.fields_mut().max_by_key(|(_, value)| size_of(value)) else { return 0 };
    let size = size_of(value);
    match value {
        Value::Map(entries) => entries.clear(),
        Value::List(items) => items.truncate(items.len() / 2),
        Value::Message(inner) => return cut_largest(inner, excess),
        Value::Bytes(data) => data.truncate(size.saturating_sub(excess)),
        Value::String(text) => {
            let kept = cut(text, size.saturating_sub(excess)).len();
            text.truncate(kept);
        }
        _ => {}
    }
    size - size_of(value)
}

fn size_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Bytes(data) => data.len(),
        Value::Message(inner) => inner.encoded_len(),
        Value::List(items) => items.iter().map(size_of).sum(),
        Value::Map(entries) => {
            let name = |key: &prost_reflect::MapKey| key.as_str().map_or(0, str::len);
            entries.iter().map(|(key, value)| name(key) + size_of(value)).sum()
        }
        _ => 0,
    }
}
