package adapter

import (
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"dragoman/adapters/go/internal/redact"
	pb "dragoman/clients/go/dragomanv1"
)

// itemKey names a text that comes in pieces.
type itemKey struct {
	kind string
	id   string
}

// item is such a text. A secret may begin in one piece and end in another, so it goes through a redactor of its own, which
// holds back what may become one; offsets are counted in what comes out.
type item struct {
	stream *redact.Stream
	offset uint64
	last   *pb.AgentEvent // for what is around the text
}

// piece is a part of an item, or says that it is complete.
type piece struct {
	key     itemKey
	text    string
	isWhole bool // replaces all pieces before
	isEnd   bool // the item is complete
	isDelta bool
}

// pieceOf returns the piece that an event is; nil if it is none.
func pieceOf(event *pb.AgentEvent) *piece {
	switch body := event.GetBody().(type) {
	case *pb.AgentEvent_Text:
		switch content := body.Text.GetContent().(type) {
		case *pb.Text_Delta:
			return &piece{key: itemKey{"text", body.Text.GetItemId()}, text: content.Delta, isDelta: true}
		case *pb.Text_Whole:
			return &piece{key: itemKey{"text", body.Text.GetItemId()}, text: content.Whole, isWhole: true}
		}
		return &piece{key: itemKey{"text", body.Text.GetItemId()}, isEnd: true}
	case *pb.AgentEvent_Thinking:
		switch content := body.Thinking.GetContent().(type) {
		case *pb.Thinking_Delta:
			return &piece{key: itemKey{"thinking", body.Thinking.GetItemId()}, text: content.Delta, isDelta: true}
		case *pb.Thinking_Whole:
			return &piece{key: itemKey{"thinking", body.Thinking.GetItemId()}, text: content.Whole, isWhole: true}
		}
		return &piece{key: itemKey{"thinking", body.Thinking.GetItemId()}, isEnd: true}
	case *pb.AgentEvent_ToolOutput:
		output := body.ToolOutput
		key := itemKey{"output " + output.GetStream().String(), output.GetToolCallId()}
		return &piece{key: key, text: output.GetText(), isDelta: true}
	}
	return nil
}

// textOf returns the text of an event that counts as output; nil if it has none.
func textOf(event *pb.AgentEvent) *string {
	switch body := event.GetBody().(type) {
	case *pb.AgentEvent_Text:
		switch content := body.Text.GetContent().(type) {
		case *pb.Text_Delta:
			return &content.Delta
		case *pb.Text_Whole:
			return &content.Whole
		}
	case *pb.AgentEvent_Thinking:
		switch content := body.Thinking.GetContent().(type) {
		case *pb.Thinking_Delta:
			return &content.Delta
		case *pb.Thinking_Whole:
			return &content.Whole
		}
	case *pb.AgentEvent_ToolOutput:
		return &body.ToolOutput.Text
	case *pb.AgentEvent_Log:
		return &body.Log.Text
	}
	return nil
}

// take takes an event that is a piece of a text, and writes what is decided of it.
func (r *Run) take(event *pb.AgentEvent, next *piece) {
	switch {
	case next.isEnd:
		r.endItem(next.key)
	case next.isWhole:
		delete(r.items, next.key)
		r.write(event)
		r.item(next.key, event).offset = uint64(len(*textOf(event)))
	default:
		current := r.item(next.key, event)
		shown, isPlain := current.stream.Feed(next.text)
		if event.GetNative() != nil && !isPlain {
			event.Native.Text = redact.Mask // no search finds half a secret in it
		}
		r.put(current, shown)
	}
}

func (r *Run) item(key itemKey, event *pb.AgentEvent) *item {
	current := r.items[key]
	if current == nil {
		current = &item{stream: r.redactor.Stream()}
		r.items[key] = current
	}
	current.last = event
	return current
}

// put writes a text that is decided, in pieces that events can hold.
func (r *Run) put(current *item, text string) {
	for len(text) > 0 {
		part := cutText(text, maxPiece)
		text = text[len(part):]
		event := proto.CloneOf(current.last)
		*textOf(event) = part
		switch body := event.GetBody().(type) {
		case *pb.AgentEvent_Text:
			body.Text.Offset = current.offset
		case *pb.AgentEvent_Thinking:
			body.Thinking.Offset = current.offset
		case *pb.AgentEvent_ToolOutput:
			body.ToolOutput.Offset, body.ToolOutput.Raw = current.offset, nil
		}
		current.offset += uint64(len(part))
		r.write(event)
		current.last.Native = nil // one frame goes with one event
	}
}

func (r *Run) endItem(key itemKey) {
	if current := r.items[key]; current != nil {
		r.put(current, current.stream.Flush())
		delete(r.items, key)
	}
}

// flushItems writes whatever is held back.
func (r *Run) flushItems() {
	for key := range r.items {
		r.endItem(key)
	}
}

// cutText returns at most so many bytes of a text, which end with a character.
func cutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// validText returns bytes as text, with each part that is not UTF-8 replaced by U+FFFD.
func validText(data []byte) string {
	if utf8.Valid(data) {
		return string(data)
	}
	out := make([]byte, 0, len(data)+16)
	for len(data) > 0 {
		character, size := utf8.DecodeRune(data)
		if character == utf8.RuneError && size == 1 {
			size = brokenSize(data)
		}
		out = utf8.AppendRune(out, character)
		data = data[size:]
	}
	return string(out)
}

// brokenSize returns how many bytes the beginning of a character has that is cut off; 1 if there is none.
func brokenSize(data []byte) int {
	for size := min(3, len(data)); size > 1; size-- {
		// A part is the beginning of a character if more bytes could complete it.
		part := append(append([]byte(nil), data[:size]...), 0x80, 0x80, 0x80)
		for total := size + 1; total <= 4; total++ {
			if character, width := utf8.DecodeRune(part[:total]); character != utf8.RuneError && width == total {
				return size
			}
		}
	}
	return 1
}
