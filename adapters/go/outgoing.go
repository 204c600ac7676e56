package adapter

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"dragoman/adapters/go/internal/redact"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	maxEvent = 1 << 20
	maxPiece = 256 << 10
	spare    = 4096     // room for what is written after a cut
	maxLeaf  = 2 << 20  // of a text that is looked through for secrets; no event holds as much
	maxFrame = 64 << 10 // of an agent's own frame
)

// redactEvent takes the secrets out of every text of an event but IDs and session handles, in place. It returns the bytes
// of texts that no event could hold, which it has cut.
func redactEvent(event *pb.AgentEvent, redactor *redact.Redactor) int {
	walk := &redaction{redactor: redactor}
	message := event.ProtoReflect()
	if body := message.WhichOneof(message.Descriptor().Oneofs().ByName("body")); body != nil {
		walk.message(message.Get(body).Message())
	}
	if native := event.GetNative(); native != nil {
		walk.message(native.ProtoReflect())
		kept := cutText(native.GetText(), maxFrame)
		native.TruncatedBytes += uint64(len(native.GetText()) - len(kept))
		native.Text = kept
	}
	event.Redacted = event.GetRedacted() || walk.changed
	return walk.cut
}

type redaction struct {
	redactor *redact.Redactor
	changed  bool
	cut      int
}

func (w *redaction) message(message protoreflect.Message) {
	if message.Descriptor().FullName() == "dragoman.v1.SessionHandle" {
		return // it comes back as it left
	}
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			w.entries(field, value.Map())
		case field.IsList():
			for i := range value.List().Len() {
				if shown, changed := w.value(field, value.List().Get(i)); changed {
					value.List().Set(i, shown)
				}
			}
		default:
			if shown, changed := w.value(field, value); changed {
				message.Set(field, shown)
			}
		}
		return true
	})
}

func (w *redaction) entries(field protoreflect.FieldDescriptor, entries protoreflect.Map) {
	entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if shown, changed := w.value(field.MapValue(), value); changed {
			entries.Set(key, shown)
		}
		return true
	})
}

// value redacts a value in place if it is a message, else it returns another one.
func (w *redaction) value(field protoreflect.FieldDescriptor, value protoreflect.Value) (protoreflect.Value, bool) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		w.message(value.Message())
	case protoreflect.StringKind:
		shown := strings.ToValidUTF8(value.String(), "\ufffd") // no message can hold what is no UTF-8
		if !isID(string(field.Name())) {
			shown = w.text(shown)
		}
		if shown != value.String() {
			return protoreflect.ValueOfString(shown), true
		}
	case protoreflect.BytesKind:
		before := string(value.Bytes())
		if shown := w.text(before); shown != before {
			return protoreflect.ValueOfBytes([]byte(shown)), true
		}
	}
	return value, false
}

func (w *redaction) text(text string) string {
	kept := text
	if len(kept) > maxLeaf {
		kept = cutText(kept, maxLeaf)
		kept = kept[:w.redactor.Undecided(kept)] // no search finds half a secret
		w.cut += len(text) - len(kept)
	}
	shown := w.redactor.Text(kept)
	w.changed = w.changed || shown != kept
	return shown
}

func isID(name string) bool {
	return name == "id" || strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_ids")
}

// fitEvent cuts the largest texts of an event until it has at most 1 MiB, and returns the bytes that it cut.
func fitEvent(event *pb.AgentEvent) int {
	if proto.Size(event) <= maxEvent-spare {
		return 0
	}
	message := event.ProtoReflect()
	field := message.WhichOneof(message.Descriptor().Oneofs().ByName("body"))
	body := message.Mutable(field).Message()
	cut := 0
	if entry := event.GetLog(); entry.GetRaw() != nil {
		// Both say the same, and a byte that is no UTF-8 takes three in the text.
		kept := entry.GetRaw()[:min(len(entry.GetRaw()), maxEvent/4-spare)]
		cut += len(entry.GetRaw()) - len(kept)
		entry.Raw, entry.Text = kept, validText(kept)
	}
	for excess := proto.Size(event) - (maxEvent - spare); excess > 0; excess = proto.Size(event) - (maxEvent - spare) {
		removed := cutLargest(body, excess)
		if removed == 0 {
			break
		}
		cut += removed
	}
	return cut
}

// countCut counts bytes that were cut in the body's truncated_bytes, or returns them if the body has none.
func countCut(event *pb.AgentEvent, cut int) int {
	message := event.ProtoReflect()
	body := message.Mutable(message.WhichOneof(message.Descriptor().Oneofs().ByName("body"))).Message()
	counter := body.Descriptor().Fields().ByName("truncated_bytes")
	if cut == 0 || counter == nil {
		return cut
	}
	body.Set(counter, protoreflect.ValueOfUint64(body.Get(counter).Uint()+uint64(cut)))
	return 0
}

// cutLargest cuts the longest text or list of a message, and returns the bytes that it cut.
func cutLargest(message protoreflect.Message, excess int) int {
	var largest protoreflect.FieldDescriptor
	size := 0
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if own := sizeOf(field, value); own > size {
			largest, size = field, own
		}
		return true
	})
	switch {
	case largest == nil:
		return 0
	case largest.IsMap():
		message.Clear(largest)
		return size
	case largest.IsList():
		list := message.Mutable(largest).List()
		list.Truncate(list.Len() / 2)
		return max(1, size-sizeOf(largest, message.Get(largest)))
	case largest.Kind() == protoreflect.MessageKind:
		return cutLargest(message.Mutable(largest).Message(), excess)
	case largest.Kind() == protoreflect.BytesKind:
		kept := message.Get(largest).Bytes()[:max(0, size-excess)]
		message.Set(largest, protoreflect.ValueOfBytes(kept))
		return size - len(kept)
	}
	kept := cutText(message.Get(largest).String(), max(0, size-excess))
	message.Set(largest, protoreflect.ValueOfString(kept))
	return size - len(kept)
}

func sizeOf(field protoreflect.FieldDescriptor, value protoreflect.Value) int {
	size := 0
	switch {
	case field.IsMap():
		value.Map().Range(func(key protoreflect.MapKey, inner protoreflect.Value) bool {
			size += len(key.String()) + sizeOfOne(field.MapValue(), inner)
			return true
		})
	case field.IsList():
		for i := range value.List().Len() {
			size += sizeOfOne(field, value.List().Get(i))
		}
	default:
		size = sizeOfOne(field, value)
	}
	return size
}

func sizeOfOne(field protoreflect.FieldDescriptor, value protoreflect.Value) int {
	switch field.Kind() {
	case protoreflect.StringKind:
		return len(value.String())
	case protoreflect.BytesKind:
		return len(value.Bytes())
	case protoreflect.MessageKind:
		return proto.Size(value.Message().Interface())
	}
	return 0
}
