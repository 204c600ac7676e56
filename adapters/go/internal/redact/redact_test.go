package redact

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	pb "dragoman/clients/go/dragomanv1"
)

const (
	token = "k7Qz-9fRw2/Xy31+ab"
	quote = `it's "here" & $there`
)

func TestTextHasNoSecretInAnyForm(t *testing.T) {
	tests := map[string]string{
		"plain":                  token,
		"in hexadecimal":         hex.EncodeToString([]byte(token)),
		"in upper hexadecimal":   strings.ToUpper(hex.EncodeToString([]byte(token))),
		"percent-encoded":        url.PathEscape(token),
		"as a query":             url.QueryEscape(token),
		"as JSON":                `it's \"here\" & $there`,
		"as Go's JSON":           `it's \"here\" \u0026 $there`,
		"as JSON in JSON":        `it's \\\"here\\\" & $there`,
		"as a shell quotes it":   `it'\''s "here" & $there`,
		"as HTML":                `it&#39;s &#34;here&#34; &amp; $there`,
		"with a colour within":   "k7Qz-9\x1b[1;31mfRw2/Xy31+ab",
		"with a line end within": "k7Qz-9fRw2\n/Xy31+ab",
		"in a terminal's title":  "\x1b]0;" + token + "\x07",
		"with a zero width":      "k7Qz-9\u200bfRw2/Xy31+ab",
	}
	redactor := New([]string{token, quote})
	for name, form := range tests {
		t.Run(name, func(t *testing.T) {
			got := redactor.Text("before " + form + " after")
			if !strings.Contains(got, Mask) || strings.Contains(got, form) {
				t.Errorf("%q is shown as %q", form, got)
			}
			if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
				t.Errorf("what is around it is lost: %q", got)
			}
		})
	}
}

func TestTextHasNoSecretInBase64AtAnyPlace(t *testing.T) {
	redactor := New([]string{token})
	for before := range 6 {
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", before) + token + "yyyy"))
		if got := redactor.Text(text); !strings.Contains(got, Mask) {
			t.Errorf("after %d bytes %q is shown as %q", before, text, got)
		}
	}
}

func TestTextKeepsWhatIsNoSecret(t *testing.T) {
	redactor := New([]string{token, "grüße-9"})
	for _, text := range []string{"", "k7Qz", "a \x1b[1mcolour\x1b[0m", "grüße", "\xff\xfe", "ein ü am Ende"} {
		if got := redactor.Text(text); got != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
	if got := redactor.Text("ü grüße-9 ü"); got != "ü [redacted] ü" {
		t.Errorf("got %q", got)
	}
}

func TestOverlappingSecretsAreOneMask(t *testing.T) {
	redactor := New([]string{"abcdef-1", "def-1-ghi", "abcdef-1-ghi-jkl"})
	if got := redactor.Text("<abcdef-1-ghi>"); got != "<[redacted]>" {
		t.Errorf("got %q", got)
	}
}

func feed(stream *Stream, pieces ...string) string {
	got := ""
	for _, piece := range pieces {
		shown, _ := stream.Feed(piece)
		got += shown
	}
	return got
}

func TestStreamRedactsASecretAtEveryCut(t *testing.T) {
	redactor := New([]string{token})
	text := "before " + token + " after"
	for first := range len(text) {
		for second := first; second <= len(text); second += 3 {
			stream := redactor.Stream()
			got := feed(stream, text[:first], text[first:second], text[second:]) + stream.Flush()
			if got != "before [redacted] after" {
				t.Fatalf("cut at %d and %d: %q", first, second, got)
			}
		}
	}
}

func TestStreamRedactsWhatComesByteByByte(t *testing.T) {
	redactor := New([]string{token, token + "-longer"})
	for _, text := range []string{token, token + "-longer", token + "-lon"} {
		stream := redactor.Stream()
		got := ""
		for _, b := range []byte("x" + text) {
			got += feed(stream, string([]byte{b}))
		}
		got += stream.Flush()
		if strings.Contains(got, token) || !strings.HasPrefix(got, "x"+Mask) {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}

func TestStreamHoldsBackNothingThatIsDecided(t *testing.T) {
	stream := New([]string{token}).Stream()
	if got := feed(stream, "an ordinary text k7"); got != "an ordinary text " {
		t.Errorf("got %q", got)
	}
	if got := feed(stream, " and more"); got != "k7 and more" {
		t.Errorf("got %q", got)
	}
}

func TestStreamDecidesAWholeSecretAtOnce(t *testing.T) {
	if got := feed(New([]string{token, "bcdefg-1"}).Stream(), "a "+token); got != "a [redacted]" { // it ends with a "b"
		t.Errorf("got %q", got)
	}
}

func TestSecretsOfARequest(t *testing.T) {
	config, err := structpb.NewStruct(map[string]any{
		"apiKey": "config-secret-1", "command": "plain-command-1", "env": map[string]any{"DB_PASSWORD": "config-secret-2"},
		"args": []any{"--token", "argument-secret-1", "--api-key=argument-secret-2", "--key-file", "/a/plain/path"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := Secrets(&pb.ExecuteRequest{
		AuthToken: "success",
		Env: map[string]string{
			"MY_TOKEN": "env-secret-1", "DB_DSN": "postgres://u:url-secret-1@h/db", "MAX_TOKENS": "100000", "NAME": "plain-name-1",
			"RANDOM": "aB3dE5gH7jK9mN1pQ3sT", "SECRET_MODE": "read-only", "COMMIT": strings.Repeat("0123456789", 4),
			"HEADER_AUTH": "Bearer env-secret-2", "API_KEY_FILE": "/a/plain/file",
		},
		Config: config,
		ApiUrl: "https://example.test/?access_token=url-secret-2&page=plain-page-1",
	})
	for _, secret := range []string{
		"success", "env-secret-1", "url-secret-1", "aB3dE5gH7jK9mN1pQ3sT", "env-secret-2", "config-secret-1", "config-secret-2",
		"argument-secret-1", "argument-secret-2", "url-secret-2",
	} {
		if !slices.Contains(got, secret) {
			t.Errorf("%q is missing in %q", secret, got)
		}
	}
	for _, found := range got {
		if strings.Contains(found, "plain") || found == "100000" || found == "read-only" || strings.HasPrefix(found, "0123") {
			t.Errorf("%q is no secret", found)
		}
	}
}

func TestKindOf(t *testing.T) {
	tests := map[string]kind{
		"API_KEY": secret, "apiKey": secret, "Authorization": secret, "openaiAPIKey": secret, "input_tokens": counter,
		"maxToken": counter, "KEYBOARD": plain, "tokenizer": plain, "apiKeySource": plain, "token_url": plain,
		"token_expires_at": plain, "public_key": plain, "PATH": plain, "keys": counter,
	}
	for name, want := range tests {
		if got := kindOf(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func TestShortSecretsAreNotLookedFor(t *testing.T) {
	if got := New([]string{"abc12"}).Text("abc12"); got != "abc12" {
		t.Errorf("got %q", got)
	}
}

func BenchmarkText(b *testing.B) {
	redactor := New([]string{token, quote, strings.Repeat("s3cret", 20)})
	line := strings.Repeat("an ordinary line of output, of which agents print millions ", 2)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		redactor.Text(line)
	}
}
