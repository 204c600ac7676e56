package request

import (
	"encoding/json"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/types/known/structpb"

	"dragoman/adapters/go/internal/redact"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

var (
	placeholder = regexp.MustCompile(`\{\{\s*([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*\}\}`)
	capital     = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// Render replaces every {{path.to.value}} by its value: text as it is, anything else as JSON. There is no second pass: a
// value that contains {{…}} stays as it is. missing has the paths that led nowhere, which nothing stands for.
func Render(template string, data map[string]any) (text string, missing []string, err error) {
	var out strings.Builder
	at, size := 0, 0
	for _, match := range placeholder.FindAllStringSubmatchIndex(template, -1) {
		path := template[match[2]:match[3]]
		out.WriteString(template[at:match[0]])
		at = match[1]
		value, isThere := valueAt(data, path)
		if !isThere {
			missing = append(missing, path)
			continue
		}
		shown, isText := value.(string)
		if !isText {
			shown = compact(value)
		}
		if size += len(shown); size > largest {
			return "", nil, dragoman.FieldError(dragoman.InvalidRequest, "prompt_template",
				"the values of the template make more than 16 MiB; give large values as files")
		}
		out.WriteString(shown)
	}
	out.WriteString(template[at:])
	return out.String(), missing, nil
}

func compact(value any) string {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(value) != nil {
		return ""
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func valueAt(data map[string]any, path string) (any, bool) {
	var value any = data
	for _, part := range strings.Split(path, ".") {
		switch inner := value.(type) {
		case map[string]any:
			value = inner[part]
		case []any:
			index, err := strconv.Atoi(part)
			if err != nil || index < 0 || index >= len(inner) {
				return nil, false
			}
			value = inner[index]
		default:
			return nil, false
		}
	}
	return value, value != nil
}

// DefaultPrompt returns the template of a run with neither prompt nor template.
func DefaultPrompt(data map[string]any) string {
	const continues = "Continue your {{brand.name}} work."
	var names []string
	for _, path := range []string{"agent.id", "agent.name"} {
		if value, isThere := valueAt(data, path); isThere && value != "" {
			names = append(names, "{{"+path+"}}")
		}
	}
	switch len(names) {
	case 0:
		return continues
	case 1:
		return "You are agent " + names[0] + ". " + continues
	}
	return "You are agent " + names[0] + " (" + names[1] + "). " + continues
}

// TemplateData returns the variables of templates. Secrets are out of reach.
func TemplateData(request *pb.ExecuteRequest) map[string]any {
	agent := agentData(request.GetAgent())
	company := bothSpellings(public(request.GetCompany(), false))
	run := bothSpellings(public(request.GetRun(), false))
	run["id"] = request.GetRunId()
	companyID := agent["companyId"]
	if companyID == nil {
		companyID = company["id"]
	}
	return map[string]any{
		"agentId": agent["id"], "companyId": companyID, "runId": request.GetRunId(),
		"agent": agent, "company": company, "run": run,
		"context": contextData(request.GetContext()),
		"brand":   map[string]any{"name": BrandName(request)},
	}
}

// BrandName returns the caller's name for prompts.
func BrandName(request *pb.ExecuteRequest) string {
	if name := request.GetBrand().GetName(); name != "" {
		return name
	}
	return "Dragoman"
}

func agentData(agent *pb.Agent) map[string]any {
	data := withoutEmpty(map[string]string{
		"id": agent.GetId(), "companyId": agent.GetCompanyId(), "name": agent.GetName(), "adapterType": agent.GetAdapterType(),
	})
	data["adapterConfig"] = public(agent.GetAdapterConfig(), true)
	return bothSpellings(data)
}

func contextData(context *pb.Context) map[string]any {
	data := bothSpellings(public(context.GetExtra(), false))
	named := withoutEmpty(map[string]string{
		"taskId": or(context.GetTaskId(), context.GetIssueId()), "issueId": or(context.GetIssueId(), context.GetTaskId()),
		"wakeReason":    context.GetWakeReason(),
		"wakeCommentId": or(context.GetWakeCommentId(), context.GetCommentId()),
		"commentId":     or(context.GetCommentId(), context.GetWakeCommentId()),
		"approvalId":    context.GetApprovalId(), "approvalStatus": context.GetApprovalStatus(),
	})
	if ids := context.GetLinkedIssueIds(); len(ids) > 0 {
		linked := make([]any, len(ids))
		for i, id := range ids {
			linked[i] = id
		}
		named["issueIds"], named["linkedIssueIds"] = linked, linked
	}
	maps.Copy(data, bothSpellings(named))
	for _, names := range [][2]string{{"taskId", "issueId"}, {"wakeCommentId", "commentId"}, {"linkedIssueIds", "issueIds"}} {
		for i, name := range names {
			if _, isThere := data[name]; !isThere && data[names[1-i]] != nil {
				data[name] = data[names[1-i]]
			}
		}
	}
	return data
}

func or(one, other string) string {
	if one != "" {
		return one
	}
	return other
}

func withoutEmpty(values map[string]string) map[string]any {
	kept := map[string]any{}
	for name, value := range values {
		if value != "" {
			kept[name] = value
		}
	}
	return kept
}

// public returns data without what is secret by its name.
func public(data *structpb.Struct, isSetting bool) map[string]any {
	return withoutSecrets(data.AsMap(), isSetting)
}

func withoutSecrets(data map[string]any, isSetting bool) map[string]any {
	shown := map[string]any{}
	for key, value := range data {
		if redact.IsHiddenKey(key, value, isSetting) {
			continue
		}
		shown[key] = withoutSecretsIn(value, isSetting)
	}
	return shown
}

func withoutSecretsIn(value any, isSetting bool) any {
	switch value := value.(type) {
	case map[string]any:
		return withoutSecrets(value, isSetting)
	case []any:
		items := make([]any, len(value))
		for i, item := range value {
			items[i] = withoutSecretsIn(item, isSetting)
		}
		return items
	}
	return value
}

// bothSpellings adds each key in its other spelling: company_id and companyId.
func bothSpellings(data map[string]any) map[string]any {
	spelled := maps.Clone(data)
	for key, value := range data {
		first, others, _ := strings.Cut(key, "_")
		camel := first
		for part := range strings.SplitSeq(others, "_") {
			if characters := []rune(part); len(characters) > 0 {
				camel += string(unicode.ToUpper(characters[0])) + strings.ToLower(string(characters[1:]))
			}
		}
		for _, name := range []string{camel, strings.ToLower(capital.ReplaceAllString(key, "${1}_$2"))} {
			if _, isThere := spelled[name]; !isThere {
				spelled[name] = value
			}
		}
	}
	return spelled
}
