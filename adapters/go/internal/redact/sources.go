package redact

import (
	"net/url"
	"regexp"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	pb "dragoman/clients/go/dragomanv1"
)

var (
	scheme     = regexp.MustCompile(`^(?i:bearer|basic|token) +(\S+)$`)
	urls       = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]+`)
	flag       = regexp.MustCompile(`^--?[A-Za-z][\w-]*$`)
	assignment = regexp.MustCompile(`(--?[A-Za-z][\w-]*|[A-Za-z_][\w.-]*)(?:\s*=\s*|:\s*)("[^"]*"|'[^']*'|[^\s"';|&]+)`)
	header     = regexp.MustCompile(`(?i)(?:authorization|cookie)\s*[:=]\s*[A-Za-z]+\s+([^\s"']+)`)
	reference  = regexp.MustCompile(`^\$(?:\w+|\{\w+\})$`)
)

// Secrets returns the secrets of a request: the token whatever it is, others unless they are words.
func Secrets(request *pb.ExecuteRequest) []string {
	collected := &collector{seen: map[string]bool{}}
	if token := request.GetAuthToken(); token != "" {
		collected.seen[token] = true
		collected.secrets = append(collected.secrets, token)
	}
	collected.variables(request.GetEnv())
	config := request.GetConfig()
	if config == nil {
		config = request.GetAgent().GetAdapterConfig()
	}
	collected.settings("", config)
	collected.urls(request.GetApiUrl())
	for _, server := range request.GetMcpServers() {
		collected.variables(server.GetStdio().GetEnv())
		collected.variables(server.GetHttp().GetHeaders())
		collected.arguments(server.GetStdio().GetArgs())
		collected.urls(server.GetHttp().GetUrl())
	}
	return collected.secrets
}

type collector struct {
	secrets []string
	seen    map[string]bool
}

func (c *collector) add(value string) {
	if value == "" || c.seen[value] || plainWord.MatchString(value) || common[strings.ToLower(value)] {
		return
	}
	c.seen[value] = true
	c.secrets = append(c.secrets, value)
}

func (c *collector) variables(variables map[string]string) {
	for name, value := range variables {
		c.variable(name, value)
	}
}

func (c *collector) variable(name, value string) {
	if isCallerSecret(name, value) {
		c.add(value)
		c.afterScheme(value)
	}
	c.urls(value)
}

func (c *collector) afterScheme(value string) {
	if match := scheme.FindStringSubmatch(value); match != nil {
		c.add(match[1])
	}
}

func (c *collector) settings(key string, settings *structpb.Struct) {
	isVariables := strings.EqualFold(key, "env") || strings.EqualFold(key, "headers")
	for name, value := range settings.GetFields() {
		if text, isText := value.GetKind().(*structpb.Value_StringValue); isText && isVariables {
			c.variable(name, text.StringValue)
		} else {
			c.setting(name, value)
		}
	}
}

func (c *collector) setting(key string, value *structpb.Value) {
	switch value := value.GetKind().(type) {
	case *structpb.Value_StringValue:
		if isCallerSecretName(key) && !numeric.MatchString(value.StringValue) {
			c.add(value.StringValue)
			c.afterScheme(value.StringValue)
		}
		c.urls(value.StringValue)
	case *structpb.Value_StructValue:
		c.settings(key, value.StructValue)
	case *structpb.Value_ListValue:
		var texts []string
		for _, item := range value.ListValue.GetValues() {
			if text, isText := item.GetKind().(*structpb.Value_StringValue); isText {
				texts = append(texts, text.StringValue)
			}
			c.setting(key, item)
		}
		c.arguments(texts)
	}
}

// arguments adds the secrets on a command line: --token X, --api-key=X, X_TOKEN=X, Authorization: X.
func (c *collector) arguments(arguments []string) {
	afterFlag := false
	for _, item := range arguments {
		if afterFlag && !strings.HasPrefix(item, "-") {
			c.add(item)
		}
		afterFlag = flag.MatchString(item) && kindOf(item) == secret
		for _, match := range assignment.FindAllStringSubmatch(item, -1) {
			bare := strings.Trim(match[2], `"'`)
			if IsSecretEntry(match[1], bare) && !reference.MatchString(bare) {
				c.add(bare)
			}
		}
		for _, match := range header.FindAllStringSubmatch(item, -1) {
			c.add(match[1])
		}
		c.urls(item)
	}
}

func (c *collector) urls(text string) {
	if !strings.Contains(text, "://") {
		return
	}
	for _, found := range urls.FindAllString(text, -1) {
		parsed, err := url.Parse(found)
		if err != nil {
			continue
		}
		if password, hasPassword := parsed.User.Password(); hasPassword {
			c.add(password)
			c.add(url.PathEscape(password))
		} else {
			c.add(parsed.User.Username())
		}
		for name, values := range parsed.Query() {
			for _, value := range values {
				if isCallerSecretName(name) && !numeric.MatchString(value) {
					c.add(value)
					c.add(url.QueryEscape(value))
				}
			}
		}
	}
}
