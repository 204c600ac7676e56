// Package redact finds the secrets of a request, and takes them out of what an agent says.
package redact

import (
	"regexp"
	"slices"
	"strings"
)

// Mask stands where a secret stood.
const Mask = "[redacted]"

var (
	secretWord = regexp.MustCompile(`(?i)key|token|secret|password|passwd|passphrase|authorization|cookie`)
	credential = regexp.MustCompile(`(?i)token|secret|password|passwd|passphrase|authorization|cookie|(?:api|access|private)[-_ ]?key`)
	words      = regexp.MustCompile(`[A-Z]+[a-z]*|[a-z]+|[0-9]+`)
	numeric    = regexp.MustCompile(`^\s*[+-]?[0-9][0-9_.,]*\s*$`)
	hexDigits  = regexp.MustCompile(`^(?:[0-9a-f]{32,}|[0-9A-F]{32,})$`)
	random     = regexp.MustCompile(`^[A-Za-z0-9_+=~.-]{20,}$`)
	plainWord  = regexp.MustCompile(`^(?:[a-z]{1,12}|[A-Z]{1,12}|[A-Z][a-z]{1,11})$`)
)

// Final words of names that say where a secret is, what it is called or how long it lives, not what it is.
var descriptors = set("name type kind source path file dir directory url uri endpoint env helper status state provider " +
	"scheme algorithm format version ref var variable")
var lifetimes = set("expires expiry expiration expired ttl")

// Words that contain a secret word by accident of spelling.
var innocent = set("keyboard keyword keywords keyframe keyframes keymap keypress keydown keyup keystroke keystrokes " +
	"monkey turkey hockey tokenize tokenized tokenizer tokenization keyring hotkey hotkeys")

// Words that make an amount of a token.
var plurals = set("tokens keys cookies secrets passwords")
var counting = set("count counts counter limit max min maximum minimum total num number budget usage used remaining " +
	"size length cost price rate per index")

// Words of a caller's own variables that are secret by them.
var callerWords = set("pass pwd pat auth cred creds credential credentials bearer jwt dsn salt private signature signing")

// Values that stand under secret names, and in every text.
var common = set("oauth2 read-only read-write us-east-1 localhost")

func set(list string) map[string]bool {
	members := map[string]bool{}
	for _, word := range strings.Fields(list) {
		members[word] = true
	}
	return members
}

type kind int

const (
	plain   kind = iota
	counter      // numbers under it are amounts, other text may be secret
	secret
)

// kindOf returns what a name says about the value under it.
func kindOf(name string) kind {
	if !secretWord.MatchString(name) {
		return plain
	}
	parts := wordsOf(name)
	if len(parts) == 0 || descriptors[parts[len(parts)-1]] || slices.ContainsFunc(parts, in(lifetimes)) {
		return plain
	}
	hits := slices.DeleteFunc(slices.Clone(parts), func(word string) bool { return !secretWord.MatchString(word) })
	isAccident := len(hits) > 0 && !slices.ContainsFunc(hits, func(word string) bool { return !innocent[word] })
	onlyKeys := !slices.ContainsFunc(hits, func(word string) bool { return word != "key" && word != "keys" })
	if isAccident || (onlyKeys && slices.Contains(parts, "public")) {
		return plain
	}
	if slices.ContainsFunc(hits, in(plurals)) || slices.ContainsFunc(parts, in(counting)) {
		return counter
	}
	return secret
}

func wordsOf(name string) []string {
	var parts []string
	for _, word := range words.FindAllString(name, -1) {
		// "APIKey" is two words, and "API" one.
		upper := len(word) - len(strings.TrimLeft(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
		if upper > 1 && upper < len(word) {
			parts = append(parts, strings.ToLower(word[:upper-1]), strings.ToLower(word[upper-1:]))
		} else {
			parts = append(parts, strings.ToLower(word))
		}
	}
	return parts
}

func in(members map[string]bool) func(string) bool {
	return func(word string) bool { return members[word] }
}

// IsSecretEntry returns whether a value is secret by its name.
func IsSecretEntry(name, value string) bool {
	switch kindOf(name) {
	case secret:
		return value != ""
	case counter:
		return value != "" && !numeric.MatchString(value)
	}
	return false
}

// isCallerSecret returns whether a variable that a caller gave is secret: the documentation sends secrets there.
func isCallerSecret(name, value string) bool {
	if value == "" || IsSecretEntry(name, value) {
		return value != ""
	}
	if slices.ContainsFunc(wordsOf(name), in(callerWords)) {
		return !numeric.MatchString(value)
	}
	return looksRandom(value)
}

func isCallerSecretName(name string) bool {
	return kindOf(name) == secret || slices.ContainsFunc(wordsOf(name), in(callerWords))
}

func looksRandom(value string) bool {
	if hexDigits.MatchString(value) {
		return len(value) != 40 // the length of a commit's
	}
	return random.MatchString(value) && strings.ContainsAny(value, "0123456789") &&
		strings.ToLower(value) != value && strings.ToUpper(value) != value
}

// IsHiddenKey returns whether templates do not reach what is under a key of an agent's settings, or of other data.
func IsHiddenKey(key string, value any, isSetting bool) bool {
	if isSetting && strings.EqualFold(key, "env") {
		return true
	}
	if !isSetting && !credential.MatchString(key) {
		return false
	}
	switch kindOf(key) {
	case secret:
		return true
	case counter:
		if text, isText := value.(string); isText {
			return !numeric.MatchString(text)
		}
		_, isNumber := value.(float64)
		return !isNumber
	}
	return false
}
