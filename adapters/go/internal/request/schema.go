package request

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	dragoman "dragoman/clients/go"
)

// Schema is a JSON Schema of settings, as far as adapters use one: type, enum, properties, required,
// additionalProperties, propertyNames.pattern, items, minimum, maximum, minLength. Other rules are not checked.
type Schema struct {
	Type                 any               `json:"type"`
	Enum                 []any             `json:"enum"`
	Properties           map[string]Schema `json:"properties"`
	Required             []string          `json:"required"`
	AdditionalProperties json.RawMessage   `json:"additionalProperties"`
	PropertyNames        *struct {
		Pattern string `json:"pattern"`
	} `json:"propertyNames"`
	Items     *Schema  `json:"items"`
	Minimum   *float64 `json:"minimum"`
	Maximum   *float64 `json:"maximum"`
	MinLength int      `json:"minLength"`
}

// ParseSchema reads the schema of an adapter's settings. An empty text is a schema that allows anything.
func ParseSchema(text string) (*Schema, error) {
	schema := &Schema{}
	if text == "" {
		return schema, nil
	}
	if err := json.Unmarshal([]byte(text), schema); err != nil {
		return nil, fmt.Errorf("read the schema of the settings: %w", err)
	}
	return schema, nil
}

// Check returns what is wrong with settings, in the order of paths.
func (s *Schema) Check(settings map[string]any) []dragoman.Violation {
	var wrong []dragoman.Violation
	s.check("config", settings, func(path, description string) {
		wrong = append(wrong, dragoman.Violation{Field: path, Description: description})
	})
	slices.SortFunc(wrong, func(a, b dragoman.Violation) int { return strings.Compare(a.Field, b.Field) })
	return wrong
}

func (s *Schema) check(path string, value any, fail func(path, description string)) {
	if types := s.types(); len(types) > 0 && !slices.ContainsFunc(types, func(name string) bool { return is(name, value) }) {
		fail(path, "must be of type "+strings.Join(types, " or "))
		return
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, value) {
		listed, _ := json.Marshal(s.Enum)
		fail(path, "must be one of "+strings.Trim(string(listed), "[]"))
	}
	switch value := value.(type) {
	case string:
		if len([]rune(value)) < s.MinLength {
			fail(path, fmt.Sprintf("must have at least %d characters", s.MinLength))
		}
		if strings.Contains(value, "\x00") {
			fail(path, "must not contain a zero byte")
		}
	case float64:
		if s.Minimum != nil && value < *s.Minimum {
			fail(path, fmt.Sprintf("must be at least %v", *s.Minimum))
		}
		if s.Maximum != nil && value > *s.Maximum {
			fail(path, fmt.Sprintf("must be at most %v", *s.Maximum))
		}
	case []any:
		for i, item := range value {
			if s.Items != nil {
				s.Items.check(fmt.Sprintf("%s[%d]", path, i), item, fail)
			}
		}
	case map[string]any:
		s.checkObject(path, value, fail)
	}
}

func (s *Schema) checkObject(path string, object map[string]any, fail func(path, description string)) {
	for _, name := range s.Required {
		if _, isThere := object[name]; !isThere {
			fail(keyPath(path, name), "is required")
		}
	}
	others := &Schema{}
	allows := true
	if len(s.AdditionalProperties) > 0 && json.Unmarshal(s.AdditionalProperties, &allows) != nil {
		allows = json.Unmarshal(s.AdditionalProperties, others) == nil
	}
	for name, value := range object {
		own, isKnown := s.Properties[name]
		switch {
		case isKnown:
			own.check(keyPath(path, name), value, fail)
		case !allows:
			fail(keyPath(path, name), "is not known; "+s.suggestion(name))
		default:
			others.check(keyPath(path, name), value, fail)
		}
		if s.PropertyNames != nil && !matches(s.PropertyNames.Pattern, name) {
			fail(path, fmt.Sprintf("must not have a key %q", cut(name, shownKey)))
		}
	}
}

// suggestion returns what an unknown key may mean.
func (s *Schema) suggestion(name string) string {
	known := slices.Sorted(maps.Keys(s.Properties))
	for _, candidate := range known {
		if distance(strings.ToLower(name), strings.ToLower(candidate)) <= 1+len(candidate)/5 {
			return "did you mean " + candidate + "?"
		}
	}
	return "known are: " + strings.Join(known, ", ")
}

// distance returns how many characters must be added, removed or replaced to make one text of another.
func distance(one, other string) int {
	if len(one) > shownKey {
		return len(one)
	}
	row := make([]int, len(other)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(one) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(other) {
			replaced := diagonal
			if one[i] != other[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(other)]
}

func matches(pattern, name string) bool {
	compiled, err := regexp.Compile(strings.ReplaceAll(pattern, `\u0000`, `\x00`))
	return err != nil || compiled.MatchString(name)
}

func (s *Schema) types() []string {
	switch declared := s.Type.(type) {
	case string:
		return []string{declared}
	case []any:
		var names []string
		for _, name := range declared {
			if text, isText := name.(string); isText {
				names = append(names, text)
			}
		}
		return names
	}
	return nil
}

func is(name string, value any) bool {
	switch value := value.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case float64:
		return name == "number" || (name == "integer" && value == math.Trunc(value))
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	}
	return false
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

func keyPath(path, key string) string {
	if identifier.MatchString(key) && len(key) <= shownKey {
		return path + "." + key
	}
	return fmt.Sprintf("%s[%q]", path, cut(key, shownKey))
}
