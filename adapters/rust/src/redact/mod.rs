//! Finds the secrets of a request, and takes them out of what an agent says.

mod forms;
pub mod names;
mod sources;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use sources::secrets;

/// Stands where a secret stood.
pub const MASK: &str = "[redacted]";

/// How many characters of a secret show nothing of it: many an innocent word ends with them.
pub const HARMLESS: usize = 3;

/// Positions that a scan remembers beyond those of the form that it reads.
const MOST_POSITIONS: usize = 4096;

/// Takes secrets out of texts. It finds them by their value in many forms, also where control characters or orders to a
/// terminal interrupt them.
pub struct Redactor {
    nodes: Vec<Node>,
    first: [bool; 256],
}

/// A state of an Aho-Corasick automaton: what of a form was read.
#[derive(Default)]
struct Node {
    next: Vec<(u8, usize)>,
    fail: usize,
    depth: usize,
    /// The length of the longest form that ends here; 0 if none does.
    form: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    start: usize,
    end: usize,
}

impl Redactor {
    /// Returns the redactor of some secrets.
    pub fn new(secrets: &[String]) -> Self {
        let mut redactor = Self { nodes: vec![Node::default()], first: [false; 256] };
        for form in secrets.iter().flat_map(|secret| forms::forms_of(secret)) {
            redactor.insert(form.as_bytes());
        }
        redactor.link();
        redactor
    }

    fn insert(&mut self, form: &[u8]) {
        self.first[usize::from(form[0])] = true;
        let mut at = 0;
        for &byte in form {
            at = match self.following(at, byte) {
                Some(known) => known,
                None => {
                    self.nodes.push(Node { depth: self.nodes[at].depth + 1, ..Node::default() });
                    let added = self.nodes.len() - 1;
                    self.nodes[at].next.push((byte, added));
                    added
                }
            };
        }
        self.nodes[at].form = self.nodes[at].depth;
    }

    fn link(&mut self) {
        let mut queue = std::collections::VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            for (byte, child) in self.nodes[at].next.clone() {
                queue.push_back(child);
                if at != 0 {
                    let fail = self.step(self.nodes[at].fail, byte);
                    self.nodes[child].fail = fail;
                    self.nodes[child].form = self.nodes[child].form.max(self.nodes[fail].form);
                }
            }
        }
    }

    fn following(&self, at: usize, byte: u8) -> Option<usize> {
        self.nodes[at].next.iter().find(|(known, _)| *known == byte).map(|(_, next)| *next)
    }

    fn step(&self, mut at: usize, byte: u8) -> usize {
        loop {
            if let Some(next) = self.following(at, byte) {
                return next;
            }
            if at == 0 {
                return 0;
            }
            at = self.nodes[at].fail;
        }
    }

    /// Returns whether there is nothing to be found.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Returns a text without secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.decide(text, true).0
    }

    /// Returns bytes without secrets; `None` if there are none in them.
    pub fn bytes(&self, data: &[u8]) -> Option<Vec<u8>> {
        let (spans, _) = self.spans(data);
        let mut out = Vec::new();
        let mut at = 0;
        for span in &spans {
            out.extend_from_slice(&data[at..span.start]);
            out.extend_from_slice(MASK.as_bytes());
            at = span.end;
        }
        out.extend_from_slice(&data[at..]);
        (!spans.is_empty()).then_some(out)
    }

    /// Returns where in a text a secret may begin that its rest would have; the length of the text if none may.
    pub fn undecided(&self, text: &str) -> usize {
        self.spans(text.as_bytes()).1
    }

    /// Returns a stream for one text.
    pub fn stream(&self) -> Stream {
        Stream { held: String::new() }
    }

    /// Returns the text redacted up to where nothing that follows can change it, and that place.
    fn decide<'a>(&self, text: &'a str, is_whole: bool) -> (Cow<'a, str>, usize) {
        let (spans, undecided) = self.spans(text.as_bytes());
        let cut = if is_whole { text.len() } else { undecided };
        let mut out = String::new();
        let mut at = 0;
        for span in spans.iter().take_while(|span| span.end <= cut) {
            out.push_str(&text[at..span.start]);
            out.push_str(MASK);
            at = span.end;
        }
        if at == 0 {
            return (Cow::Borrowed(&text[..cut]), cut);
        }
        out.push_str(&text[at..cut]);
        (Cow::Owned(out), cut)
    }

    /// Returns where secrets are, in order and apart, and from where on a secret may have begun.
    fn spans(&self, text: &[u8]) -> (Vec<Span>, usize) {
        if self.is_empty() {
            return (Vec::new(), text.len());
        }
        let (mut found, mut cut) = self.scan(text, false);
        if text.contains(&0x1b) || text.windows(2).any(|pair| pair == CSI) {
            // A secret may be interrupted by an order to the terminal, or stand within one, as in a title.
            let (more, more_cut) = self.scan(text, true);
            found = merged(found, more);
            cut = cut.min(more_cut);
        }
        // A secret that is found, and may be the beginning of a longer one, is undecided as a whole.
        for span in found.iter().rev().take_while(|span| span.end > cut).copied().collect::<Vec<_>>() {
            cut = cut.min(span.start);
        }
        (found, cut)
    }

    fn scan(&self, text: &[u8], skips_orders: bool) -> (Vec<Span>, usize) {
        let mut found = Vec::new();
        let mut positions: Vec<usize> = Vec::with_capacity(64); // of the bytes that the present state has read
        let mut at = 0;
        let mut i = 0;
        while i < text.len() {
            if at == 0 && (0x20..0x80).contains(&text[i]) && !self.first[usize::from(text[i])] {
                i += 1; // as most of a text
                continue;
            }
            let length = interruption(&text[i..], skips_orders);
            if length > 0 {
                i += length;
                continue;
            }
            let end = i + character(&text[i..]).1;
            while i < end {
                at = self.step(at, text[i]);
                positions.push(i);
                i += 1;
                let form = self.nodes[at].form;
                if form > 0 {
                    add(&mut found, Span { start: positions[positions.len() - form], end: i });
                }
            }
            let excess = positions.len() - self.nodes[at].depth;
            if at == 0 {
                positions.clear();
            } else if excess > MOST_POSITIONS {
                positions.drain(..excess);
            }
        }
        while at != 0 && self.nodes[at].next.is_empty() {
            at = self.nodes[at].fail; // a form that is whole, and no beginning of a longer one
        }
        let depth = self.nodes[at].depth;
        let is_whole = found.last().is_some_and(|last| last.end == text.len());
        if depth == 0 || (is_whole && depth <= HARMLESS) {
            return (found, text.len()); // the next secret does not begin in the end of this one
        }
        let undecided = positions[positions.len() - depth];
        (found, undecided)
    }
}

/// Adds a span that ends after all others, and joins those that it overlaps.
fn add(spans: &mut Vec<Span>, mut next: Span) {
    while let Some(last) = spans.last().filter(|last| last.end > next.start) {
        next.start = next.start.min(last.start);
        spans.pop();
    }
    spans.push(next);
}

fn merged(one: Vec<Span>, other: Vec<Span>) -> Vec<Span> {
    let mut sorted = [one, other].concat();
    sorted.sort_by_key(|span| span.end);
    let mut all = Vec::new();
    for span in sorted {
        add(&mut all, span);
    }
    all
}

/// The control sequence introducer as one character, U+009B.
const CSI: &[u8] = "\u{9b}".as_bytes();

/// Returns the character that begins a text, and its size; none for a byte that is no UTF-8.
fn character(text: &[u8]) -> (Option<char>, usize) {
    if text[0] < 0x80 {
        return (Some(char::from(text[0])), 1);
    }
    let longest = &text[..text.len().min(4)];
    let valid = match std::str::from_utf8(longest) {
        Ok(valid) => valid,
        Err(error) => std::str::from_utf8(&longest[..error.valid_up_to()]).unwrap_or_default(),
    };
    valid.chars().next().map_or((None, 1), |first| (Some(first), first.len_utf8()))
}

/// Returns the length of what begins a text and is not shown: a control character, or an order to the terminal. 0 if
/// nothing does.
fn interruption(text: &[u8], skips_orders: bool) -> usize {
    let byte = text[0];
    if (0x20..0x7f).contains(&byte) {
        return 0;
    }
    if skips_orders && (byte == 0x1b || text.starts_with(CSI)) {
        return order(text);
    }
    if byte < 0x20 || byte == 0x7f {
        return 1;
    }
    match character(text) {
        (None, size) => size,
        (Some('\u{fffd}' | '\u{80}'..='\u{9f}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}'), size) => size,
        _ => 0,
    }
}

/// Returns the length of the order to a terminal that begins a text.
fn order(text: &[u8]) -> usize {
    let run = |from: usize, most: usize, range: std::ops::RangeInclusive<u8>| {
        from + text[from..].iter().take(most).take_while(|byte| range.contains(byte)).count()
    };
    let introducer = if text.starts_with(CSI) || text.starts_with(b"\x1b[") { 2 } else { 0 };
    if introducer > 0 {
        let parameters = run(introducer, 32, b'0'..=b'?');
        return run(run(parameters, 4, b' '..=b'/'), 1, b'@'..=b'~');
    }
    if text.starts_with(b"\x1b]") {
        let mut end = 2;
        for _ in 0..60 {
            if text.get(end).is_none_or(|byte| matches!(byte, 0x07 | 0x1b | b'\n')) {
                break;
            }
            end += character(&text[end..]).1;
        }
        let rest = &text[end..];
        return end + if rest.starts_with(b"\x07") { 1 } else { 2 * usize::from(rest.starts_with(b"\x1b\\")) };
    }
    run(run(1, 4, b' '..=b'/'), 1, b'0'..=b'~')
}

fn without_interruptions(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < text.len() {
        let length = interruption(&text.as_bytes()[i..], true);
        if length > 0 {
            i += length;
            continue;
        }
        let size = character(&text.as_bytes()[i..]).1;
        out.push_str(&text[i..i + size]);
        i += size;
    }
    out
}

/// Redacts a text that comes in pieces. It holds back what may become a secret.
pub struct Stream {
    held: String,
}

impl Stream {
    /// Takes the next piece, and returns what is decided, and whether no secret begins or ends in the piece.
    pub fn feed(&mut self, redactor: &Redactor, piece: &str) -> (String, bool) {
        let before = self.held.len();
        let text = std::mem::take(&mut self.held) + piece;
        let (shown, cut) = redactor.decide(&text, false);
        let is_plain = before <= HARMLESS && text.len() - cut <= HARMLESS && shown == text[..cut];
        self.held = text[cut..].to_owned();
        (shown.into_owned(), is_plain)
    }

    /// Returns what was held back: the text is over.
    pub fn flush(&mut self, redactor: &Redactor) -> String {
        redactor.text(&std::mem::take(&mut self.held)).into_owned()
    }
}
