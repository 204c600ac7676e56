package redact

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// Harmless is how many characters of a secret show nothing of it: many an innocent word ends with them.
const Harmless = 3

// Redactor takes secrets out of texts. It finds them by their value in many forms, also where control characters or
// orders to a terminal interrupt them. It may be used by several goroutines.
type Redactor struct {
	nodes []node
	first [256]bool // bytes that a form begins with
}

// node is a state of an Aho-Corasick automaton: what of a form was read.
type node struct {
	next  map[byte]int32
	fail  int32
	depth int32
	form  int32 // the length of the longest form that ends here; 0 if none does
}

// New returns the redactor of some secrets.
func New(secrets []string) *Redactor {
	r := &Redactor{nodes: []node{{}}}
	for _, secret := range secrets {
		for form := range formsOf(secret) {
			r.insert(form)
		}
	}
	r.link()
	return r
}

func (r *Redactor) insert(form string) {
	r.first[form[0]] = true
	at := int32(0)
	for i := range len(form) {
		following, isKnown := r.nodes[at].next[form[i]]
		if !isKnown {
			following = int32(len(r.nodes))
			r.nodes = append(r.nodes, node{depth: r.nodes[at].depth + 1})
			if r.nodes[at].next == nil {
				r.nodes[at].next = map[byte]int32{}
			}
			r.nodes[at].next[form[i]] = following
		}
		at = following
	}
	r.nodes[at].form = r.nodes[at].depth
}

func (r *Redactor) link() {
	queue := []int32{0}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for b, child := range r.nodes[at].next {
			queue = append(queue, child)
			if at == 0 {
				continue
			}
			fail := r.step(r.nodes[at].fail, b)
			r.nodes[child].fail = fail
			r.nodes[child].form = max(r.nodes[child].form, r.nodes[fail].form)
		}
	}
}

func (r *Redactor) step(at int32, b byte) int32 {
	for {
		if following, ok := r.nodes[at].next[b]; ok {
			return following
		}
		if at == 0 {
			return 0
		}
		at = r.nodes[at].fail
	}
}

// Text returns a text without secrets; unchanged, itself.
func (r *Redactor) Text(text string) string {
	shown, _ := r.decide(text, true)
	return shown
}

// Changes returns whether there is a secret in a text.
func (r *Redactor) Changes(text string) bool { return r.Text(text) != text }

// Undecided returns where in a text a secret may begin that its rest would have; the length of the text if none may.
func (r *Redactor) Undecided(text string) int {
	_, cut := r.spans(text)
	return cut
}

// decide returns the text redacted up to where nothing that follows can change it, and that place.
func (r *Redactor) decide(text string, isWhole bool) (shown string, cut int) {
	if len(r.nodes) == 1 {
		return text, len(text)
	}
	spans, cut := r.spans(text)
	if isWhole {
		cut = len(text)
	}
	var out strings.Builder
	at := 0
	for _, span := range spans {
		if span.end > cut {
			break
		}
		out.WriteString(text[at:span.start])
		out.WriteString(Mask)
		at = span.end
	}
	if at == 0 {
		return text[:cut], cut
	}
	out.WriteString(text[at:cut])
	return out.String(), cut
}

type span struct{ start, end int }

// spans returns where secrets are, in order and apart, and from where on a secret may have begun.
func (r *Redactor) spans(text string) ([]span, int) {
	if len(r.nodes) == 1 {
		return nil, len(text)
	}
	found, cut := r.scan(text, false)
	if strings.ContainsRune(text, '\x1b') || strings.ContainsRune(text, '\u009b') {
		// A secret may be interrupted by an order to the terminal, or stand within one, as in a title.
		more, moreCut := r.scan(text, true)
		found, cut = merged(found, more), min(cut, moreCut)
	}
	// A secret that is found, and may be the beginning of a longer one, is undecided as a whole.
	for i := len(found) - 1; i >= 0 && found[i].end > cut; i-- {
		cut = min(cut, found[i].start)
	}
	return found, cut
}

func (r *Redactor) scan(text string, skipsOrders bool) ([]span, int) {
	var found []span
	positions := make([]int, 0, 64) // of the bytes that the present state has read
	at := int32(0)
	for i := 0; i < len(text); {
		if at == 0 && text[i] >= 0x20 && text[i] < utf8.RuneSelf && !r.first[text[i]] {
			i++ // as most of a text
			continue
		}
		if length := interruption(text[i:], skipsOrders); length > 0 {
			i += length
			continue
		}
		for end := i + characterSize(text[i:]); i < end; i++ {
			at = r.step(at, text[i])
			positions = append(positions, i)
			if form := int(r.nodes[at].form); form > 0 {
				found = add(found, span{positions[len(positions)-form], i + 1})
			}
		}
		if at == 0 {
			positions = positions[:0]
		} else if excess := len(positions) - int(r.nodes[at].depth); excess > 4096 {
			positions = append(positions[:0], positions[excess:]...)
		}
	}
	for at != 0 && r.nodes[at].next == nil { // a form that is whole, and no beginning of a longer one
		at = r.nodes[at].fail
	}
	depth := int(r.nodes[at].depth)
	isWhole := len(found) > 0 && found[len(found)-1].end == len(text)
	if depth == 0 || (isWhole && depth <= Harmless) { // the next secret does not begin in the end of this one
		return found, len(text)
	}
	return found, positions[len(positions)-depth]
}

// add adds a span that ends after all others, and joins those that it overlaps.
func add(spans []span, next span) []span {
	for len(spans) > 0 && spans[len(spans)-1].end > next.start {
		next.start = min(next.start, spans[len(spans)-1].start)
		spans = spans[:len(spans)-1]
	}
	return append(spans, next)
}

func merged(one, other []span) []span {
	var all []span
	for len(one) > 0 || len(other) > 0 {
		if len(other) == 0 || (len(one) > 0 && one[0].end <= other[0].end) {
			all, one = add(all, one[0]), one[1:]
		} else {
			all, other = add(all, other[0]), other[1:]
		}
	}
	return all
}

var order = regexp.MustCompile(`^(?:\x1b\[|\x{9b})[0-?]{0,32}[ -/]{0,4}[@-~]?|^\x1b\][^\x07\x1b\n]{0,60}(?:\x07|\x1b\\)?|^\x1b[ -/]{0,4}[0-~]?`)

// interruption returns the length of what begins a text and is not shown: a control character, or an order to the
// terminal. 0 if nothing does.
func interruption(text string, skipsOrders bool) int {
	b := text[0]
	if b >= 0x20 && b < 0x7f {
		return 0
	}
	if skipsOrders && (b == 0x1b || strings.HasPrefix(text, "\u009b")) {
		return len(order.FindString(text))
	}
	if b < 0x20 || b == 0x7f {
		return 1
	}
	switch character, size := utf8.DecodeRuneInString(text); {
	case character == utf8.RuneError, 0x80 <= character && character < 0xa0,
		0x200b <= character && character <= 0x200f, character == 0x2060, character == 0xfeff:
		return size
	}
	return 0
}

func withoutInterruptions(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		if length := interruption(text[i:], true); length > 0 {
			i += length
			continue
		}
		size := characterSize(text[i:])
		out.WriteString(text[i : i+size])
		i += size
	}
	return out.String()
}

func characterSize(text string) int {
	if text[0] < utf8.RuneSelf {
		return 1
	}
	_, size := utf8.DecodeRuneInString(text)
	return size
}

// Stream redacts a text that comes in pieces. It holds back what may become a secret.
type Stream struct {
	redactor *Redactor
	held     string
}

// Stream returns a stream for one text.
func (r *Redactor) Stream() *Stream { return &Stream{redactor: r} }

// Feed takes the next piece, and returns what is decided. isPlain says that no secret begins or ends in the piece.
func (s *Stream) Feed(piece string) (shown string, isPlain bool) {
	text := s.held + piece
	before := len(s.held)
	shown, cut := s.redactor.decide(text, false)
	s.held = text[cut:]
	return shown, before <= Harmless && len(s.held) <= Harmless && shown == text[:cut]
}

// Flush returns what was held back: the text is over.
func (s *Stream) Flush() string {
	shown := s.redactor.Text(s.held)
	s.held = ""
	return shown
}
