//! Several events in one message.

use std::sync::Arc;

use prost::Message as _;

use crate::api::agent_event::Body;
use crate::api::{AgentEvent, Batch};

const MOST: usize = 1024;
const LARGEST: usize = 256 << 10;
/// Room for what is around the events.
const SPARE: usize = 64;

/// Returns events with neighbours that may share a batch as one.
pub fn join(events: Vec<Arc<AgentEvent>>) -> Vec<AgentEvent> {
    let mut messages = Vec::new();
    let mut group: Vec<Arc<AgentEvent>> = Vec::new();
    let mut size = 0;
    for event in events {
        let own = event.encoded_len() + 8;
        if !may_join(&event) || own > LARGEST / 2 {
            flush(&mut group, &mut messages);
            messages.push(Arc::unwrap_or_clone(event));
            continue;
        }
        let is_next = group.last().is_some_and(|last| last.sequence + 1 == event.sequence);
        if !is_next || group.len() == MOST || size + own > LARGEST - SPARE {
            flush(&mut group, &mut messages);
            size = 0;
        }
        size += own;
        group.push(event);
    }
    flush(&mut group, &mut messages);
    messages
}

fn flush(group: &mut Vec<Arc<AgentEvent>>, messages: &mut Vec<AgentEvent>) {
    let mut events: Vec<AgentEvent> = group.drain(..).map(Arc::unwrap_or_clone).collect();
    if events.len() < 2 {
        messages.append(&mut events);
    } else {
        let sequence = events.last().map_or(0, |last| last.sequence);
        messages.push(AgentEvent { sequence, body: Some(Body::Batch(Batch { events })), ..AgentEvent::default() });
    }
}

fn may_join(event: &AgentEvent) -> bool {
    let is_alone = matches!(
        event.body,
        None | Some(
            Body::Started(_)
                | Body::Session(_)
                | Body::State(_)
                | Body::InputRequest(_)
                | Body::InputResolved(_)
                | Body::InputAccepted(_)
                | Body::InputDropped(_)
                | Body::RunUpdated(_)
                | Body::AttemptEnded(_)
                | Body::Gap(_)
                | Body::Result(_)
                | Body::Batch(_)
        )
    );
    event.sequence > 0 && !is_alone
}
