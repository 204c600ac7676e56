package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"strings"
)

const (
	shortestSecret  = 6    // characters; a shorter value stands in too many words by chance
	shortestLine    = 16   // of a line of a secret that counts as a secret of its own
	longestEncoded  = 4096 // a longer secret is not looked for in hexadecimal and the like
	percentUnstated = "-._~"
)

// formsOf returns the forms in which a secret is looked for, without what may interrupt them; none if it is too short.
func formsOf(secret string) map[string]bool {
	values := []string{secret, strings.TrimSpace(secret)}
	if lines := strings.Split(secret, "\n"); len(lines) > 1 {
		for _, line := range lines { // output arrives line by line
			line = strings.TrimSpace(line)
			if len(line) >= shortestLine && !strings.Contains(line, " ") && !strings.HasPrefix(line, "-----") {
				values = append(values, line)
			}
		}
	}
	forms := map[string]bool{}
	for _, value := range values {
		for _, form := range encodings(value) {
			form = withoutInterruptions(form)
			if len(strings.TrimSpace(form)) >= shortestSecret {
				forms[form] = true
			}
		}
	}
	return forms
}

func encodings(value string) []string {
	once := jsonEscapes(value)
	forms := append([]string{value}, once...)
	for _, escaped := range once {
		forms = append(forms, jsonEscapes(escaped)...)
	}
	if len(value) > longestEncoded {
		return forms
	}
	data := []byte(value)
	inHex := hex.EncodeToString(data)
	forms = append(forms, inHex, strings.ToUpper(inHex))
	forms = append(forms, quotations(value)...)
	forms = append(forms, percentForms(data)...)
	return append(forms, base64Forms(data)...)
}

func jsonEscapes(value string) []string {
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // a string is always encoded
	unicode := strings.TrimSuffix(plain.String(), "\n")
	unicode = unicode[1 : len(unicode)-1]
	escaped, _ := json.Marshal(value)
	var ascii strings.Builder
	for _, character := range unicode {
		if character < 0x80 {
			ascii.WriteRune(character)
		} else if character < 0x10000 {
			fmt.Fprintf(&ascii, `\u%04x`, character)
		} else {
			character -= 0x10000
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, 0xd800+character>>10, 0xdc00+character&0x3ff)
		}
	}
	return []string{unicode, string(escaped[1 : len(escaped)-1]), ascii.String()}
}

// quotations returns a value as shells, Python and HTML quote it.
func quotations(value string) []string {
	backslashed := func(special string) string {
		var out strings.Builder
		for _, character := range value {
			if strings.ContainsRune(special, character) {
				out.WriteByte('\\')
			}
			out.WriteRune(character)
		}
		return out.String()
	}
	inHTML := html.EscapeString(value)
	return []string{
		strings.ReplaceAll(value, "'", `'\''`),
		strings.ReplaceAll(value, "'", `'"'"'`),
		backslashed("\"\\$`"),
		backslashed(" \t'\"\\|&;()<>!{}*[]?^$`#~,"),
		backslashed(`'\`),
		inHTML,
		strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(inHTML),
		strings.NewReplacer("&#34;", "&quot;", "&#39;", "&#x27;").Replace(inHTML),
		strings.ReplaceAll(jsonEscapes(value)[0], "/", `\/`),
	}
}

func percentForms(data []byte) []string {
	var forms []string
	for _, unstated := range []string{percentUnstated, percentUnstated + "/", percentUnstated + "$&+:=@"} {
		for _, shape := range []string{"%%%02X", "%%%02x"} {
			var out strings.Builder
			for _, b := range data {
				if isAlphanumeric(b) || strings.IndexByte(unstated, b) >= 0 {
					out.WriteByte(b)
				} else {
					fmt.Fprintf(&out, shape, b)
				}
			}
			forms = append(forms, out.String(), strings.ReplaceAll(out.String(), "%20", "+"))
		}
	}
	return forms
}

func isAlphanumeric(b byte) bool {
	return '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z'
}

// base64Forms returns what is the same in base64 wherever the value stands: one form for each of three alignments.
func base64Forms(data []byte) []string {
	var forms []string
	for before := range 3 {
		first, last := (8*before+5)/6, 8*(before+len(data))/6
		padded := append(make([]byte, before), data...)
		core := base64.StdEncoding.EncodeToString(padded)[first:last]
		forms = append(forms, core, strings.NewReplacer("+", "-", "/", "_").Replace(core))
	}
	return forms
}
