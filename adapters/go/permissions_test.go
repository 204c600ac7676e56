package adapter

import (
	"testing"

	pb "dragoman/clients/go/dragomanv1"
)

func TestTheFirstRuleThatMatchesDecides(t *testing.T) {
	rule := func(decision pb.PermissionDecision) *pb.PermissionRule { return &pb.PermissionRule{Decision: decision} }
	tests := map[string]struct {
		permissions *pb.Permissions
		want        pb.PermissionDecision
	}{
		"none":                      {nil, deny},
		"interactive":               {&pb.Permissions{Interactive: true}, ask},
		"allowed by default":        {&pb.Permissions{DefaultDecision: allow}, allow},
		"denied by default":         {&pb.Permissions{DefaultDecision: deny, Interactive: true}, deny},
		"asked, but unattended":     {&pb.Permissions{DefaultDecision: ask}, deny},
		"all approved":              {&pb.Permissions{AutoApprove: true, DefaultDecision: deny}, allow},
		"denied first":              {&pb.Permissions{Rules: []*pb.PermissionRule{rule(deny), rule(allow)}, DefaultDecision: allow}, deny},
		"allowed first":             {&pb.Permissions{Rules: []*pb.PermissionRule{rule(allow), rule(deny)}}, allow},
		"a rule without a decision": {&pb.Permissions{Rules: []*pb.PermissionRule{rule(0)}, Interactive: true, DefaultDecision: allow}, ask},
		"a rule that asks":          {&pb.Permissions{Rules: []*pb.PermissionRule{rule(ask)}, DefaultDecision: allow}, deny},
		"a rule of another tool": {&pb.Permissions{
			Rules: []*pb.PermissionRule{{Decision: allow, ToolName: "Other"}}, DefaultDecision: deny,
		}, deny},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := decide(test.permissions, &pb.InputSubject{ToolName: "Bash", Command: "ls"}, ""); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestWhatARuleIsAbout(t *testing.T) {
	bash := func(command string) *pb.InputSubject {
		return &pb.InputSubject{ToolName: "Bash", ToolKind: pb.ToolKind_TOOL_KIND_EXECUTE, Command: command}
	}
	files := func(paths ...string) *pb.InputSubject { return &pb.InputSubject{ToolName: "Write", Paths: paths} }
	git := &pb.PermissionRule{Decision: allow, CommandPrefix: "git status"}
	rm := &pb.PermissionRule{Decision: deny, CommandPrefix: "rm"}
	sources := &pb.PermissionRule{Decision: allow, PathGlob: "/w/src/*"}
	etc := &pb.PermissionRule{Decision: deny, PathGlob: "/etc/*"}
	tests := []struct {
		rule    *pb.PermissionRule
		subject *pb.InputSubject
		want    bool
	}{
		{&pb.PermissionRule{}, bash("ls"), true},
		{&pb.PermissionRule{ToolName: "Bash"}, bash("ls"), true},
		{&pb.PermissionRule{ToolName: "bash"}, bash("ls"), false},
		{&pb.PermissionRule{ToolKind: pb.ToolKind_TOOL_KIND_EXECUTE}, bash("ls"), true},
		{&pb.PermissionRule{ToolKind: pb.ToolKind_TOOL_KIND_READ}, bash("ls"), false},
		{&pb.PermissionRule{ToolName: "Bash", CommandPrefix: "rm"}, bash("ls"), false},
		{&pb.PermissionRule{PathGlob: "*"}, bash("ls"), false}, // it is about no path
		{&pb.PermissionRule{Host: "example.com"}, bash("ls"), false},
		{&pb.PermissionRule{Decision: deny, Host: "Example.com"}, &pb.InputSubject{Host: "EXAMPLE.com."}, true},
		{&pb.PermissionRule{Decision: deny, Host: "Example.com"}, &pb.InputSubject{Host: "evil.example.com"}, false},

		{git, bash("git status"), true}, {git, bash(" git  status -s "), true},
		{git, bash("git status; rm -rf ~"), false}, {git, bash("git status && rm -rf ~"), false},
		{git, bash("git status | sh"), false}, {git, bash("git status & rm -rf ~"), false},
		{git, bash("git status\nrm -rf ~"), false}, {git, bash("git status $(rm -rf ~)"), false},
		{git, bash("git status `rm -rf ~`"), false}, {git, bash("git status > /etc/passwd"), false},
		{git, bash("git status <(rm -rf ~)"), false}, {git, bash("git status {a,b}"), false},
		{git, bash("git statusx"), false}, {git, bash("git  'statu"), false}, {git, bash("sudo git status"), false},
		{git, bash("git"), false}, {git, bash(""), false},
		{rm, bash(" rm x"), true}, {rm, bash("rmdir x"), true}, {rm, bash("ls; rm x"), true}, {rm, bash("ls\nrm x"), true},
		{rm, bash("(rm x)"), true}, {rm, bash("$(rm x)"), true}, {rm, bash("a | rm"), true},
		{rm, bash("echo rm"), false}, {rm, bash("git rm"), false},

		{sources, files("/w/src/a.go"), true}, {sources, files("/w/src/deep/a.go"), true}, {sources, files("./src/a.go"), true},
		{sources, files("/w/src/a.go", "/etc/passwd"), false}, // one allowed path does not allow the other
		{sources, files("/w/src/../src/a.go"), false},         // src may be a link: only the kernel knows where this leads
		{sources, files("src/../../etc/passwd"), false}, {sources, files("/w/srcx/a.go"), false},
		{sources, files("/W/SRC/a.go"), false}, {sources, files(""), false}, {sources, files(), false},
		{etc, files("../etc/passwd"), true}, {etc, files("//etc/passwd"), true}, {etc, files("/w/a", "/etc/./passwd"), true},
		{etc, files("etc/passwd"), false}, {etc, files(), false},
		{&pb.PermissionRule{Decision: allow, PathGlob: "src/?.[!x]o"}, files("src/a.go"), true},
		{&pb.PermissionRule{Decision: allow, PathGlob: "src/?.[!g]o"}, files("src/a.go"), false},
		{&pb.PermissionRule{Decision: deny, PathGlob: "*.p[ef]m"}, files("certs/x.pem"), true},
		{&pb.PermissionRule{Decision: allow, PathGlob: "a[z-a"}, files("a[z-a"), true},
		{&pb.PermissionRule{Decision: allow, PathGlob: "src/*"}, files("/elsewhere/src/a"), false},
	}
	for _, test := range tests {
		if got := matches(test.rule, test.subject, "/w"); got != test.want {
			t.Errorf("%v about %v: got %v", test.rule, test.subject, got)
		}
	}
}
