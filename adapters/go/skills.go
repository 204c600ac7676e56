package adapter

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"dragoman/adapters/go/internal/skills"
	pb "dragoman/clients/go/dragomanv1"
)

// prepare makes the prompt, and gives the agent the skills of the request: in a directory for this run alone, or as text
// of the prompt.
func (r *Run) prepare(layout string) error {
	asked := r.settings.Skills
	var section, where, directory string
	var notes, warnings []string
	if len(asked) > 0 {
		names := make([]string, len(asked))
		for i, skill := range asked {
			names[i] = skill.Name
		}
		own, err := r.Dir()
		if err != nil {
			return err
		}
		where, directory = "in a directory of this run's own", filepath.Join(own, "skills")
		if layout != "" {
			err = skills.LayOut(directory, layout, asked)
		} else {
			where = "as text in the prompt"
			section, warnings, err = skills.Prompt(directory, asked)
		}
		if err != nil {
			return fmt.Errorf("lay out the skills: %w", err)
		}
		if _, err := os.Stat(directory); err != nil { // they have no files but their texts
			directory = ""
		}
		notes = []string{"skills " + where + ": " + strings.Join(names, ", ")}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Prompt, r.SkillsDir, r.skillText = r.settings.Prompt(section), directory, section
	r.notes = notes
	for _, message := range warnings {
		r.waiting = append(r.waiting, &pb.Notice{
			Severity: pb.Severity_SEVERITY_WARNING, Code: "reading_left_out", Message: message,
		})
	}
	return nil
}
