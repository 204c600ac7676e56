//! The trace that a run belongs to (W3C Trace Context).

use tonic::metadata::MetadataMap;

/// Bytes of a `tracestate`.
const MOST_STATE: usize = 512;

/// A span of a trace, as its children get it; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The `traceparent`.
    pub parent: String,
    /// The `tracestate`.
    pub state: String,
}

impl Trace {
    /// Returns the trace in the metadata of a call; none if what is there is no trace.
    pub fn received(metadata: &MetadataMap) -> Self {
        let last = |key| metadata.get_all(key).iter().next_back().and_then(|value| value.to_str().ok());
        Self::parse(last("traceparent").unwrap_or_default(), last("tracestate").unwrap_or_default())
    }

    /// As <https://www.w3.org/TR/trace-context/#traceparent-header> says; a later version may be longer, and is read as the
    /// first.
    pub fn parse(parent: &str, state: &str) -> Self {
        let is_hex = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_id = |text: &str, length| is_hex(text, length) && text.bytes().any(|byte| byte != b'0');
        let parts: Vec<&str> = parent.split('-').collect();
        let [version, trace, span, flags] = parts[..] else { return Self::default() };
        if version == "ff" || !is_hex(version, 2) || !is_id(trace, 32) || !is_id(span, 16) || !is_hex(flags, 2) {
            return Self::default();
        }
        let is_state = state.len() <= MOST_STATE && state.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        Self { parent: parent.to_owned(), state: if is_state { state.to_owned() } else { String::new() } }
    }

    /// Returns the parts of the `traceparent`: version, trace, span, flags; none without a trace.
    pub fn parts(&self) -> Option<[&str; 4]> {
        let parts: Vec<&str> = self.parent.split('-').collect();
        parts.try_into().ok()
    }

    /// Returns what an agent finds in its environment.
    pub fn variables(&self) -> impl Iterator<Item = (String, String)> {
        let all = [("TRACEPARENT", &self.parent), ("TRACESTATE", &self.state)];
        all.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.to_owned(), value.clone()))
    }

    /// Returns what a log line says of it.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts().into_iter().flat_map(|[_, trace, span, _]| [("trace_id", trace), ("span_id", span)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_trace_is_whole_or_none() {
        let later = format!("01{}", &PARENT[2..]);
        for parent in [PARENT, &later] {
            assert_eq!(Trace::parse(parent, "a=1"), Trace { parent: parent.into(), state: "a=1".into() });
        }
        for state in ["a\n", "ä=1", &"a".repeat(513)] {
            assert_eq!(Trace::parse(PARENT, state), Trace { parent: PARENT.into(), state: String::new() });
        }
        let [trace, span] = ["0".repeat(32), "0".repeat(16)];
        for wrong in [
            "",
            "nonsense",
            &format!("ff{}", &PARENT[2..]),
            &format!("00-{trace}-b7ad6b7169203331-01"),
            &format!("00-0af7651916cd43dd8448eb211c80319c-{span}-01"),
            &PARENT.to_uppercase(),
            &format!("{PARENT}-more"),
            &format!("{PARENT}\n"),
            &PARENT[..54],
        ] {
            assert_eq!(Trace::parse(wrong, "a=1"), Trace::default(), "{wrong:?}");
        }
    }

    #[test]
    fn a_log_line_has_its_ids() {
        let fields: Vec<_> = Trace::parse(PARENT, "").fields().map(|(name, id)| format!("{name}={id}")).collect();
        assert_eq!(fields, ["trace_id=0af7651916cd43dd8448eb211c80319c", "span_id=b7ad6b7169203331"]);
        assert_eq!(Trace::default().fields().count(), 0);
    }
}
