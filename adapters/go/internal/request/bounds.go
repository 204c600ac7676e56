// Package request checks a request, and makes of it what a run needs: settings, prompt, environment.
package request

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dragoman "dragoman/clients/go"
)

const (
	kib = 1 << 10
	mib = 1 << 20

	largest       = 16 * mib
	mostElements  = 20_000
	mostValues    = 2_000
	deepest       = 32
	longestPeriod = 315_360_000 // seconds: ten years
	shownKey      = 64          // characters of a map's key that a path shows
)

// bound is what one field may hold, in entries and bytes.
type bound struct{ entries, name, text, total int }

var (
	byDefault = bound{entries: 256, name: 512, text: 4 * kib, total: largest}
	anyText   = bound{entries: 256, name: 512, text: largest, total: largest}
	variables = bound{entries: 1024, name: 256, text: 128 * kib, total: 512 * kib}
	values    = bound{entries: mostValues, name: kib, text: largest, total: largest}
)

func of(entries, name, text int) bound { return bound{entries, name, text, largest} }

// bounds are the bounds of the contract by message and field; "*" is any message.
var bounds = map[string]bound{
	"*.adapter":                        of(256, 512, 256),
	"*.run_id":                         of(256, 512, 256),
	"*.env":                            variables,
	"*.labels":                         of(64, 128, kib),
	"*.task_key":                       of(256, 512, 512),
	"*.agent_id":                       of(256, 512, 512),
	"*.company_id":                     of(256, 512, 512),
	"Agent.id":                         of(256, 512, 512),
	"ExecuteRequest.prompt":            anyText,
	"ExecuteRequest.prompt_template":   of(256, 512, 64*kib),
	"ExecuteRequest.system_prompt":     anyText,
	"ExecuteRequest.auth_token":        of(256, 512, 32*kib),
	"ExecuteRequest.mcp_servers":       of(64, 512, 4*kib),
	"Instructions.text":                anyText,
	"SessionSelector.handover":         anyText,
	"Context.linked_issue_ids":         of(256, 512, 512),
	"Workspace.additional_directories": of(64, 512, 4*kib),
	"SkillFiles.content":               of(1024, kib, largest),
	"McpStdio.args":                    of(256, 512, 32*kib),
	"McpStdio.env":                     {128, 256, 32 * kib, 128 * kib},
	"McpHttp.url":                      of(256, 512, 8*kib),
	"McpHttp.headers":                  {64, 256, 8 * kib, 64 * kib},
	"Permissions.rules":                of(512, 512, 4*kib),
	"Fallback.adapters":                of(16, 512, 256),
	"Fallback.on":                      of(64, 512, 4*kib),
	"Fallback.configs":                 of(16, 256, 4*kib),
	"InputAnswer.text":                 anyText,
	"InputAnswer.value_json":           anyText,
	"InputAnswer.updated_input_json":   anyText,
	"InputAnswer.message":              anyText,
	"Value.string_value":               anyText,
	"Struct.fields":                    values,
	"ListValue.values":                 values,
}

func boundOf(field protoreflect.FieldDescriptor) bound {
	name := string(field.Name())
	if known, ok := bounds[string(field.ContainingMessage().Name())+"."+name]; ok {
		return known
	}
	if known, ok := bounds["*."+name]; ok {
		return known
	}
	return byDefault
}

// CheckBounds returns an error for a request that is too large in any way.
func CheckBounds(request proto.Message) error {
	if size := proto.Size(request); size > largest {
		return dragoman.Errorf(dragoman.MessageTooLarge,
			"the request has %d bytes, and at most 16 MiB are accepted; give large inputs as files", size)
	}
	walk := &walk{}
	walk.message(request.ProtoReflect(), "", 0)
	if walk.err != nil {
		return walk.err
	}
	return nil
}

type walk struct {
	elements, values int
	err              *dragoman.Error
}

func (w *walk) fail(path, format string, args ...any) {
	if w.err == nil {
		w.err = dragoman.FieldError(dragoman.InvalidRequest, path, fmt.Sprintf(format, args...))
	}
}

func (w *walk) message(message protoreflect.Message, path string, depth int) {
	switch message.Descriptor().FullName() {
	case "google.protobuf.Duration":
		w.duration(message, path)
		return
	case "google.protobuf.Struct", "google.protobuf.ListValue":
		if depth++; depth > deepest {
			w.fail(path, "must not be nested more than %d levels deep", deepest)
			return
		}
	case "google.protobuf.Value":
		if w.values++; w.values > mostValues {
			w.fail(path, "the objects of the request have more than %d values together; the one too many is here", mostValues)
			return
		}
	}
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		w.field(field, value, inner(message, path, string(field.Name())), depth)
		return w.err == nil
	})
}

// inner returns the path of a field. Within a Struct paths name the keys alone, as people write them.
func inner(message protoreflect.Message, path, name string) string {
	switch message.Descriptor().FullName() {
	case "google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Value":
		return path
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func (w *walk) count(path string) {
	if w.elements++; w.elements > mostElements {
		w.fail(path, "the request has more than %d fields, list items and map entries together; the one too many is here", mostElements)
	}
}

func (w *walk) field(field protoreflect.FieldDescriptor, value protoreflect.Value, path string, depth int) {
	limit := boundOf(field)
	switch {
	case field.IsMap():
		w.entries(field, value.Map(), limit, path, depth)
	case field.IsList():
		list := value.List()
		if list.Len() > limit.entries {
			w.fail(path, "must not have more than %d entries", limit.entries)
		}
		for i := 0; i < list.Len() && w.err == nil; i++ {
			w.one(field, list.Get(i), limit, fmt.Sprintf("%s[%d]", path, i), depth)
		}
	default:
		w.one(field, value, limit, path, depth)
	}
}

func (w *walk) entries(field protoreflect.FieldDescriptor, entries protoreflect.Map, limit bound, path string, depth int) {
	if entries.Len() > limit.entries {
		w.fail(path, "must not have more than %d entries", limit.entries)
	}
	total := 0
	entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		name := key.String()
		if total += len(name); len(name) > limit.name {
			w.fail(path, "a name in it must not have more than %d bytes", limit.name)
		}
		if kind := field.MapValue().Kind(); kind == protoreflect.StringKind {
			total += len(value.String())
		} else if kind == protoreflect.BytesKind {
			total += len(value.Bytes())
		}
		w.one(field.MapValue(), value, limit, path+"."+cut(name, shownKey), depth)
		return w.err == nil
	})
	if total > limit.total {
		w.fail(path, "its names and values must not have more than %d bytes together", limit.total)
	}
}

func (w *walk) one(field protoreflect.FieldDescriptor, value protoreflect.Value, limit bound, path string, depth int) {
	w.count(path)
	size := 0
	switch field.Kind() {
	case protoreflect.StringKind:
		size = len(value.String())
	case protoreflect.BytesKind:
		size = len(value.Bytes())
	case protoreflect.MessageKind:
		w.message(value.Message(), path, depth)
	}
	if size > limit.text {
		w.fail(path, "must not have more than %d bytes", limit.text)
	}
}

func (w *walk) duration(message protoreflect.Message, path string) {
	fields := message.Descriptor().Fields()
	seconds, nanos := message.Get(fields.ByName("seconds")).Int(), message.Get(fields.ByName("nanos")).Int()
	switch {
	case seconds < 0 || nanos < 0:
		w.fail(path, "must not be negative")
	case nanos >= 1_000_000_000:
		w.fail(path, "must have nanos below 1,000,000,000")
	case seconds > longestPeriod:
		w.fail(path, "must not be longer than %d s", longestPeriod)
	}
}

// cut returns at most so many bytes of a text, which end with a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
