// Package skills checks the skills of a request, and gives them to an agent: as files, or as text of its prompt.
//
// A skill is a directory with a SKILL.md. Skills come from elsewhere: no name, path or link in one may lead out of it.
package skills

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	document   = "SKILL.md"
	references = "references/"

	mostEntries       = 20_000
	mostDocumentBytes = 4 << 20
	mostCopiedBytes   = 16 << 20
)

var nameShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Skill is one skill, where it is or as its files.
type Skill struct {
	Name      string
	Directory string // where it is; empty if there is nothing but Files
	// Files have content by relative path; of a skill in a directory, its SKILL.md and its references.
	Files map[string][]byte
}

// Read reads the skills of a request. It returns them, and what is wrong with the others.
func Read(asked []*pb.Skill) ([]Skill, []dragoman.Violation) {
	var read []Skill
	var wrong []dragoman.Violation
	seen := map[string]bool{}
	for i, one := range asked {
		field := fmt.Sprintf("skills[%d]", i)
		folded := strings.ToLower(one.GetName()) // some file systems do not distinguish them
		if seen[folded] {
			wrong = append(wrong, dragoman.Violation{Field: field + ".name", Description: "names are unique"})
		}
		seen[folded] = true
		skill, err := readOne(one)
		if err != nil {
			wrong = append(wrong, dragoman.Violation{Field: field, Description: err.Error()})
			continue
		}
		read = append(read, skill)
	}
	return read, wrong
}

func readOne(asked *pb.Skill) (Skill, error) {
	skill := Skill{Name: asked.GetName()}
	if !nameShape.MatchString(skill.Name) {
		return skill, fmt.Errorf("%q cannot be the name of a skill: at most 128 letters, digits, '.', '_' and '-', "+
			"the first a letter or a digit", skill.Name[:min(len(skill.Name), 80)])
	}
	switch source := asked.GetSource().(type) {
	case *pb.Skill_Files:
		skill.Files = source.Files.GetContent()
		for name := range skill.Files {
			if !IsPlain(name) {
				return skill, fmt.Errorf("a file of the skill %s has a path that is not plain and relative: %q", skill.Name, name[:min(len(name), 80)])
			}
		}
	case *pb.Skill_Directory:
		skill.Directory = source.Directory
		if !filepath.IsAbs(source.Directory) {
			return skill, fmt.Errorf("the directory of the skill %s is not an absolute path", skill.Name)
		}
		isDocument := func(name string) bool { return name == document || strings.HasPrefix(name, references) }
		files, err := skill.read(isDocument, mostDocumentBytes)
		if err != nil {
			return skill, err
		}
		skill.Files = files
	default:
		return skill, errors.New("give its directory or its files")
	}
	if _, isThere := skill.Files[document]; !isThere {
		return skill, fmt.Errorf("the skill %s has no %s", skill.Name, document)
	}
	return skill, nil
}

// IsPlain returns whether a path is relative, and leads nowhere but down.
func IsPlain(name string) bool {
	if name == "" || strings.ContainsAny(name, "\x00\\") {
		return false
	}
	return !slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return part == "" || part == "." || part == ".." })
}

// all returns all files of a skill, by relative path.
func (s Skill) all() (map[string][]byte, error) {
	if s.Directory == "" {
		return s.Files, nil
	}
	return s.read(func(string) bool { return true }, mostCopiedBytes)
}

// read reads files of a skill in a directory, and looks all of it over.
func (s Skill) read(wanted func(name string) bool, most int64) (map[string][]byte, error) {
	files := map[string][]byte{}
	root, err := filepath.EvalSymlinks(s.Directory)
	if err != nil {
		return nil, s.unreadable(err)
	}
	entries, size := 0, int64(0)
	err = filepath.WalkDir(root, func(where string, entry fs.DirEntry, err error) error {
		if err != nil {
			return s.unreadable(err)
		}
		if where == root {
			if !entry.IsDir() {
				return fmt.Errorf("the skill %s is no directory", s.Name)
			}
			return nil
		}
		if entries++; entries > mostEntries {
			return fmt.Errorf("the skill %s has more than %d files", s.Name, mostEntries)
		}
		name := filepath.ToSlash(strings.TrimPrefix(where, root+"/"))
		if entry.Type() == fs.ModeSymlink {
			target, err := filepath.EvalSymlinks(where)
			if err != nil {
				return nil // it leads nowhere
			}
			if target != root && !strings.HasPrefix(target, root+"/") {
				return fmt.Errorf("%s in the skill %s is a link that leads out of it", name, s.Name)
			}
		} else if entry.IsDir() {
			return nil
		}
		if !wanted(name) {
			return nil
		}
		data, isFile, err := readFile(where, most-size)
		if err != nil {
			return s.unreadable(err)
		}
		if size += int64(len(data)); size > most {
			return fmt.Errorf("the files of the skill %s have more than %d bytes", s.Name, most)
		}
		if isFile {
			files[name] = data
		}
		return nil
	})
	return files, err
}

func (s Skill) unreadable(err error) error {
	var reason *fs.PathError
	if errors.As(err, &reason) {
		err = reason.Err
	}
	return fmt.Errorf("the skill %s cannot be read: %v", s.Name, err)
}

// readFile reads a file, and a byte more than allowed if it is larger. What is no file is not waited for.
func readFile(name string, most int64) (data []byte, isFile bool, err error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, false, err
	}
	data, err = io.ReadAll(io.LimitReader(file, most+1))
	return data, true, err
}

// LayOut puts skills into a new directory, which only this user can read, where a layout says, e.g.
// ".claude/skills/{name}". One that is in a directory is linked to.
func LayOut(directory, layout string, skills []Skill) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(directory) // nothing is written through a link that leads out of it
	if err != nil {
		return err
	}
	defer root.Close()
	for _, skill := range skills {
		place := strings.ReplaceAll(layout, "{name}", skill.Name)
		if skill.Directory != "" {
			if err := root.MkdirAll(path.Dir(place), 0o700); err != nil {
				return err
			}
			if err := root.Symlink(skill.Directory, place); err != nil {
				return err
			}
			continue
		}
		if err := write(root, place, skill.Files); err != nil {
			return err
		}
	}
	return nil
}

func write(root *os.Root, place string, files map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		target := path.Join(place, name)
		if err := root.MkdirAll(path.Dir(target), 0o700); err != nil {
			return err
		}
		mode := os.FileMode(0o600)
		if strings.HasPrefix(string(files[name][:min(2, len(files[name]))]), "#!") {
			mode = 0o700
		}
		file, err := root.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = file.Write(files[name])
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}
