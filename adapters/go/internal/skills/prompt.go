package skills

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	promptBytes = 64 << 10 // that one skill may take of a prompt
	mostNamed   = 40       // files of a skill that its prompt names
)

// Prompt returns skills as a section of a prompt, for an agent without skills of its own. What they have beside their
// text is copied to a new directory, which the section names; whatever cannot be copied is returned as warnings.
func Prompt(directory string, skills []Skill) (section string, warnings []string, err error) {
	parts := []string{"These skills are procedures for you to follow where they apply.\n"}
	for _, skill := range skills {
		files, err := skill.all()
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("The files beside %s are not given to the agent: %v.", document, err))
			files = nil
		}
		var beside []string
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if name != document {
				beside = append(beside, name)
			}
		}
		where := filepath.Join(directory, skill.Name)
		if len(beside) > 0 {
			if err := copyTo(directory, skill.Name, files); err != nil {
				return "", nil, err
			}
		}
		parts = append(parts, skill.text(where, beside))
	}
	return strings.TrimRight(strings.Join(parts, "\n"), "\n"), warnings, nil
}

func copyTo(directory, place string, files map[string][]byte) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	defer root.Close()
	return write(root, place, files)
}

// text returns a skill for a prompt: its SKILL.md, without front matter, and the references that this names.
func (s Skill) text(where string, beside []string) string {
	body := strings.TrimSpace(bodyOf(s.Files[document]))
	head := ""
	if len(beside) > 0 {
		named := strings.Join(beside[:min(len(beside), mostNamed)], ", ")
		if len(beside) > mostNamed {
			named += ", ..."
		}
		head = fmt.Sprintf("The files of this skill are in %s: %s. Its relative paths are meant from there.\n\n", where, named)
	}
	parts := []string{fmt.Sprintf("# Skill: %s\n\n%s%s", s.Name, head, body)}
	for _, name := range slices.Sorted(maps.Keys(s.Files)) {
		if strings.HasPrefix(name, references) && isMentioned(name, body) {
			parts = append(parts, fmt.Sprintf("## %s: %s\n\n%s", s.Name, name, strings.TrimSpace(bodyOf(s.Files[name]))))
		}
	}
	text := strings.Join(parts, "\n\n")
	if len(text) <= promptBytes {
		return text + "\n"
	}
	size := promptBytes
	for !utf8.RuneStart(text[size]) {
		size--
	}
	return fmt.Sprintf("%s\n[... %d bytes of the skill %s left out ...]\n", text[:size], len(text)-size, s.Name)
}

var fence = regexp.MustCompile(`(?sm)\A\x{feff}?---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\z)`)

// bodyOf returns a document without its front matter, which says when to load it: loaded it is.
func bodyOf(data []byte) string {
	text := strings.ToValidUTF8(string(data), "\ufffd")
	if found := fence.FindStringIndex(text); found != nil {
		return text[found[1]:]
	}
	return strings.TrimPrefix(text, "\ufeff")
}

func isMentioned(name, body string) bool {
	isInWord := func(character rune) bool {
		return character == '-' || character == '_' || unicode.IsLetter(character) || unicode.IsDigit(character)
	}
	isInPath := func(character rune) bool { return character == '/' || character == '.' || isInWord(character) }
	return contains(body, name, isInWord, isInWord) || contains(body, path.Base(name), isInPath, isInWord)
}

// contains returns whether a text has a word, where characters before and after it belong to none.
func contains(text, word string, before, after func(rune) bool) bool {
	for start := 0; ; {
		at := strings.Index(text[start:], word)
		if at < 0 {
			return false
		}
		at += start
		previous, _ := utf8.DecodeLastRuneInString(text[:at])
		next, _ := utf8.DecodeRuneInString(text[at+len(word):])
		if !before(previous) && !after(next) {
			return true
		}
		start = at + 1
	}
}
