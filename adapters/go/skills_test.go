package adapter_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const document = "---\nname: pdf\ndescription: Reads PDF.\n---\n\nRead it as references/forms.md says, with scripts/fill.sh.\n"

func filesOf(name string, files map[string]string) *pb.Skill {
	content := map[string][]byte{}
	for path, text := range files {
		content[path] = []byte(text)
	}
	return &pb.Skill{Name: name, Source: &pb.Skill_Files{Files: &pb.SkillFiles{Content: content}}}
}

func directoryOf(name, path string) *pb.Skill {
	return &pb.Skill{Name: name, Source: &pb.Skill_Directory{Directory: path}}
}

// written makes a directory with files.
func written(t *testing.T, files map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, text := range files {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func pdf() map[string]string {
	return map[string]string{
		"SKILL.md": document, "references/forms.md": "Forms.", "references/other.md": "Other.", "scripts/fill.sh": "#!/bin/sh\necho filled\n",
	}
}

func using(skills ...*pb.Skill) *pb.ExecuteRequest {
	return request(func(r *pb.ExecuteRequest) {
		r.Task, r.Skills = &pb.ExecuteRequest_Prompt{Prompt: "Fill it."}, skills
	})
}

func TestSkillsAreLaidOutForTheRun(t *testing.T) {
	own := written(t, pdf())
	var kept string
	served := described(func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
		kept = run.SkillsDir
		script := `cd "$SKILLS"; head -n 1 .agent/skills/pdf/SKILL.md; .agent/skills/pdf/scripts/fill.sh; cat .agent/skills/mine/references/forms.md`
		exit, err := run.Exec(adapter.Command{Path: "sh", Args: []string{"-c", script}, Env: map[string]string{"SKILLS": run.SkillsDir}}, nil)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"", "pdf", "pdf/SKILL.md", "pdf/scripts/fill.sh"} {
			info, err := os.Stat(filepath.Join(run.SkillsDir, ".agent/skills", name))
			if err != nil || info.Mode().Perm()&0o077 != 0 {
				return nil, fmt.Errorf("others can read %s: %v, %v", name, info.Mode(), err)
			}
		}
		run.Log(adapter.Line{Stream: pb.OutputStream_OUTPUT_STREAM_STDOUT, Data: []byte(run.Prompt)})
		return exit.Result(), nil
	}, pb.Feature_FEATURE_SKILLS, pb.Feature_FEATURE_NATIVE_SKILLS)
	served.SkillLayout = ".agent/skills/{name}"
	client, _ := serveAdapter(t, served)
	all := execute(t, client, using(filesOf("pdf", pdf()), directoryOf("mine", own)))
	if got, want := logged(all), "---\nfilled\nForms.\nFill it."; got != want {
		t.Errorf("it found %q, want %q", got, want)
	}
	if notes := all[0].GetStarted().GetNotes(); !slices.Contains(notes, "skills in a directory of this run's own: pdf, mine") {
		t.Errorf("the notes are %q", notes)
	}
	if _, err := os.Stat(kept); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", kept, err)
	}
	if _, err := os.Stat(filepath.Join(own, "SKILL.md")); err != nil {
		t.Errorf("the caller's skill is gone: %v", err)
	}
}

func TestSkillsAreTextOfThePrompt(t *testing.T) {
	seen, files := "", ""
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		seen = strings.ReplaceAll(run.Prompt, run.SkillsDir, "DIR")
		data, err := os.ReadFile(filepath.Join(run.SkillsDir, "pdf", "scripts", "fill.sh"))
		files = string(data)
		return nil, err
	}, pb.Feature_FEATURE_SKILLS)
	all := execute(t, client, using(filesOf("pdf", pdf()), filesOf("plain", map[string]string{"SKILL.md": "Be plain."})))
	if resultOf(all).GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED || !strings.HasSuffix(files, "echo filled\n") {
		t.Fatalf("it ended so: %v; the script is %q", resultOf(all), files)
	}
	want := "These skills are procedures for you to follow where they apply.\n\n" +
		"# Skill: pdf\n\nThe files of this skill are in DIR/pdf: references/forms.md, references/other.md, scripts/fill.sh. " +
		"Its relative paths are meant from there.\n\n" +
		"Read it as references/forms.md says, with scripts/fill.sh.\n\n## pdf: references/forms.md\n\nForms.\n\n" +
		"# Skill: plain\n\nBe plain.\n\nFill it."
	if seen != want {
		t.Errorf("the prompt is %q, want %q", seen, want)
	}
	sizes := all[0].GetStarted().GetPromptBytes()
	if sizes["skills"] == 0 || sizes["prompt"] != uint64(len("Fill it.")) {
		t.Errorf("the sizes are %v", sizes)
	}
}

func TestASkillIsCutToItsShareOfThePrompt(t *testing.T) {
	seen := ""
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		seen = run.Prompt
		return nil, nil
	}, pb.Feature_FEATURE_SKILLS)
	execute(t, client, using(filesOf("long", map[string]string{"SKILL.md": strings.Repeat("ä", 40_000)})))
	if !strings.Contains(seen, "bytes of the skill long left out ...]") || len(seen) > 66_000 || !utf8.ValidString(seen) {
		t.Errorf("the prompt has %d bytes", len(seen))
	}
}

func TestSkillsThatAreRefused(t *testing.T) {
	outside := written(t, map[string]string{"key": "x"})
	leading := written(t, map[string]string{"SKILL.md": "x"})
	if err := os.Symlink(filepath.Join(outside, "key"), filepath.Join(leading, "key")); err != nil {
		t.Fatal(err)
	}
	whole := map[string]string{"SKILL.md": "x"}
	tests := map[string][]*pb.Skill{
		"without a document":    {filesOf("pdf", map[string]string{"README.md": "x"})},
		"a name that leads up":  {filesOf("../pdf", whole)},
		"a path that leads up":  {filesOf("pdf", map[string]string{"SKILL.md": "x", "../x": "x"})},
		"an absolute path":      {filesOf("pdf", map[string]string{"SKILL.md": "x", "/x": "x"})},
		"one name twice":        {filesOf("pdf", whole), filesOf("PDF", whole)},
		"neither":               {{Name: "pdf"}},
		"no directory":          {directoryOf("pdf", "/no/such")},
		"a relative directory":  {directoryOf("pdf", "pdf")},
		"a link that leads out": {directoryOf("pdf", leading)},
		"too large":             {directoryOf("pdf", written(t, map[string]string{"SKILL.md": strings.Repeat("x", 5<<20)}))},
	}
	client, _ := serve(t, hang, pb.Feature_FEATURE_SKILLS)
	for name, skills := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := client.Execute(background(t), using(skills...))
			wrong := dragoman.FromError(err)
			if dragoman.ReasonOf(err) != dragoman.InvalidRequest || !strings.HasPrefix(wrong.Violations[0].Field, "skills[") {
				t.Errorf("got %v", err)
			}
		})
	}
}
