package adapter

import (
	"path"
	"regexp"
	"slices"
	"strings"

	pb "dragoman/clients/go/dragomanv1"
)

const (
	allow = pb.PermissionDecision_PERMISSION_DECISION_ALLOW
	ask   = pb.PermissionDecision_PERMISSION_DECISION_ASK
	deny  = pb.PermissionDecision_PERMISSION_DECISION_DENY
)

// decide returns what the permissions of a run say of an action: the first rule that matches decides, then the default.
// In an unattended run, ASK is DENY. Relative paths are meant from cwd.
func decide(permissions *pb.Permissions, subject *pb.InputSubject, cwd string) pb.PermissionDecision {
	if permissions.GetAutoApprove() {
		return allow
	}
	decision := permissions.GetDefaultDecision()
	for _, rule := range permissions.GetRules() {
		if matches(rule, subject, cwd) {
			decision = rule.GetDecision()
			break
		}
	}
	switch {
	case decision == allow || decision == deny:
		return decision
	case permissions.GetInteractive():
		return ask
	}
	return deny
}

// matches returns whether a rule is about an action. What is unclear matches a rule that denies and none that allows.
func matches(rule *pb.PermissionRule, subject *pb.InputSubject, cwd string) bool {
	switch {
	case rule.GetToolKind() != 0 && rule.GetToolKind() != subject.GetToolKind():
	case rule.GetToolName() != "" && rule.GetToolName() != subject.GetToolName():
	case rule.GetPathGlob() != "" && !pathsMatch(rule, subject.GetPaths(), cwd):
	case rule.GetCommandPrefix() != "" && !commandMatches(rule, strings.TrimSpace(subject.GetCommand())):
	case rule.GetHost() != "" && hostOf(rule.GetHost()) != hostOf(subject.GetHost()):
	default:
		return true
	}
	return false
}

func hostOf(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

func pathsMatch(rule *pb.PermissionRule, paths []string, cwd string) bool {
	glob := globOf(rule.GetPathGlob())
	isNamed := func(name string) bool {
		whole := name
		if !path.IsAbs(name) {
			whole = path.Join("/", cwd, name)
		}
		// Links are not followed: their targets may change meanwhile.
		return glob.MatchString(name) || glob.MatchString(path.Clean(whole))
	}
	if rule.GetDecision() == deny {
		return slices.ContainsFunc(paths, isNamed)
	}
	// Allowing one of several paths must not allow the others; ".." could leave what the glob names.
	isForeign := func(name string) bool {
		return slices.Contains(strings.Split(name, "/"), "..") || !isNamed(name)
	}
	return len(paths) > 0 && !slices.ContainsFunc(paths, isForeign)
}

var globPart = regexp.MustCompile(`\[!?\]?[^\]]*\]|\*|\?`)

// globOf returns a glob as an expression: '*' and '?' match any characters, "[…]" one of some.
func globOf(glob string) *regexp.Regexp {
	expression, last := "", 0
	for _, part := range globPart.FindAllStringIndex(glob, -1) {
		expression += regexp.QuoteMeta(glob[last:part[0]])
		last = part[1]
		switch found := glob[part[0]:part[1]]; found {
		case "*":
			expression += ".*"
		case "?":
			expression += "."
		default:
			set, isNot := strings.CutPrefix(found[1:len(found)-1], "!")
			set = strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(set)
			if isNot {
				set = "^" + set
			}
			expression += "[" + set + "]"
		}
	}
	expression += regexp.QuoteMeta(glob[last:])
	compiled, err := regexp.Compile(`(?s)\A` + expression + `\z`)
	if err != nil { // a set such as "[z-a]"
		return regexp.MustCompile(`\A` + regexp.QuoteMeta(glob) + `\z`)
	}
	return compiled
}

const shellOperators = ";&|<>`$\n(){}"

func commandMatches(rule *pb.PermissionRule, command string) bool {
	prefix := rule.GetCommandPrefix()
	if rule.GetDecision() == deny {
		parts := strings.FieldsFunc(command, func(character rune) bool { return strings.ContainsRune(shellOperators, character) })
		return slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(strings.TrimSpace(part), prefix) })
	}
	// "git status" must not allow "git status; rm -rf ~", nor "git statusx"; what is quoted is unclear.
	if strings.ContainsAny(command, shellOperators) || strings.ContainsAny(command+prefix, "\"'\\") {
		return false
	}
	words, first := strings.Fields(command), strings.Fields(prefix)
	return len(first) > 0 && len(first) <= len(words) && slices.Equal(words[:len(first)], first)
}
