//! Texts that come in pieces. A secret may begin in one piece and end in another, so each text goes through a redactor of its
//! own, which holds back what may become one; offsets are counted in what comes out.

use std::collections::BTreeMap;

use crate::api::agent_event::Body;
use crate::api::{AgentEvent, text, thinking};
use crate::outgoing::MAX_PIECE;
use crate::redact::{MASK, Redactor, Stream};
use crate::request::cut;

/// Names such a text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Text(String),
    Thinking(String),
    Output(String, i32),
}

struct Item {
    stream: Stream,
    offset: u64,
    /// For what is around the text.
    last: AgentEvent,
}

/// The texts of an attempt that are not complete.
#[derive(Default)]
pub struct Items(BTreeMap<Key, Item>);

enum Part {
    Delta,
    /// Replaces all pieces before.
    Whole,
    /// The item is complete.
    End,
}

fn part_of(body: &Body) -> Option<(Key, Part)> {
    Some(match body {
        Body::Text(text) => {
            let part = match text.content {
                Some(text::Content::Delta(_)) => Part::Delta,
                Some(text::Content::Whole(_)) => Part::Whole,
                None => Part::End,
            };
            (Key::Text(text.item_id.clone()), part)
        }
        Body::Thinking(thinking) => {
            let part = match thinking.content {
                Some(thinking::Content::Delta(_)) => Part::Delta,
                Some(thinking::Content::Whole(_)) => Part::Whole,
                None => Part::End,
            };
            (Key::Thinking(thinking.item_id.clone()), part)
        }
        Body::ToolOutput(output) => (Key::Output(output.tool_call_id.clone(), output.stream), Part::Delta),
        _ => return None,
    })
}

/// Returns the text of an event that counts as output.
pub fn text_of(body: &mut Body) -> Option<&mut String> {
    match body {
        Body::Text(text) => match &mut text.content {
            Some(text::Content::Delta(own) | text::Content::Whole(own)) => Some(own),
            None => None,
        },
        Body::Thinking(thinking) => match &mut thinking.content {
            Some(thinking::Content::Delta(own) | thinking::Content::Whole(own)) => Some(own),
            None => None,
        },
        Body::ToolOutput(output) => Some(&mut output.text),
        Body::Log(log) => Some(&mut log.text),
        _ => None,
    }
}

impl Items {
    /// Takes an event, and returns what is to be written of it: itself, unless it is a piece of a text.
    pub fn take(&mut self, mut event: AgentEvent, redactor: &Redactor) -> Vec<AgentEvent> {
        let Some((key, part)) = event.body.as_ref().and_then(part_of) else { return vec![event] };
        match part {
            Part::End => self.end(&key, redactor),
            Part::Whole => {
                let length = event.body.as_mut().and_then(text_of).map_or(0, |text| redactor.text(text).len());
                let item = Item { stream: redactor.stream(), offset: length as u64, last: event.clone() };
                self.0.insert(key, item);
                vec![event]
            }
            Part::Delta => {
                let piece = event.body.as_mut().and_then(text_of).map(std::mem::take).unwrap_or_default();
                let fresh = || Item { stream: redactor.stream(), offset: 0, last: AgentEvent::default() };
                let item = self.0.entry(key).or_insert_with(fresh);
                let (shown, is_plain) = item.stream.feed(redactor, &piece);
                if let Some(native) = event.native.as_mut().filter(|_| !is_plain) {
                    MASK.clone_into(&mut native.text); // no search finds half a secret in it
                }
                item.last = event;
                item.pieces(&shown)
            }
        }
    }

    fn end(&mut self, key: &Key, redactor: &Redactor) -> Vec<AgentEvent> {
        let Some(mut item) = self.0.remove(key) else { return Vec::new() };
        let rest = item.stream.flush(redactor);
        item.pieces(&rest)
    }

    /// Returns what is held back of the output of a tool that has ended.
    pub fn end_call(&mut self, id: &str, redactor: &Redactor) -> Vec<AgentEvent> {
        self.end_all(redactor, |key| matches!(key, Key::Output(call, _) if call == id))
    }

    /// Returns whatever is held back.
    pub fn flush(&mut self, redactor: &Redactor) -> Vec<AgentEvent> {
        self.end_all(redactor, |_| true)
    }

    fn end_all(&mut self, redactor: &Redactor, is_over: impl Fn(&Key) -> bool) -> Vec<AgentEvent> {
        let over: Vec<Key> = self.0.keys().filter(|key| is_over(key)).cloned().collect();
        over.iter().flat_map(|key| self.end(key, redactor)).collect()
    }
}

impl Item {
    /// Returns a text that is decided, in pieces that events can hold.
    fn pieces(&mut self, mut text: &str) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        while !text.is_empty() {
            let part = cut(text, MAX_PIECE);
            text = &text[part.len()..];
            let mut event = self.last.clone();
            match &mut event.body {
                Some(Body::Text(body)) => {
                    body.offset = self.offset;
                    body.content = Some(text::Content::Delta(part.to_owned()));
                }
                Some(Body::Thinking(body)) => {
                    body.offset = self.offset;
                    body.content = Some(thinking::Content::Delta(part.to_owned()));
                }
                Some(Body::ToolOutput(body)) => {
                    body.offset = self.offset;
                    part.clone_into(&mut body.text);
                    body.raw.clear();
                }
                _ => {}
            }
            self.offset += part.len() as u64;
            self.last.native = None; // one frame goes with one event
            events.push(event);
        }
        events
    }
}
