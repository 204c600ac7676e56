package adapter

import (
	"testing"
	"time"
)

func TestDrainGrace(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "0": 0, " 2.5 ": 2500 * time.Millisecond, "300": 5 * time.Minute} {
		t.Setenv(drainGraceVariable, text)
		if got, err := drainGrace(); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"5m", "-1", "nan", "inf", "1e300", "x"} {
		t.Setenv(drainGraceVariable, text)
		if got, err := drainGrace(); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
