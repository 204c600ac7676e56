/** The tools of Claude Code. */
import { ToolKind, type InputSubjectSchema, type MessageInitShape } from "@dragoman/client/v1";

const KINDS: Record<string, ToolKind> = {
  Read: ToolKind.READ,
  NotebookRead: ToolKind.READ,
  Write: ToolKind.EDIT,
  Edit: ToolKind.EDIT,
  MultiEdit: ToolKind.EDIT,
  NotebookEdit: ToolKind.EDIT,
  Glob: ToolKind.SEARCH,
  Grep: ToolKind.SEARCH,
  WebSearch: ToolKind.SEARCH,
  WebFetch: ToolKind.FETCH,
  Bash: ToolKind.EXECUTE,
  BashOutput: ToolKind.EXECUTE,
  KillShell: ToolKind.EXECUTE,
  Agent: ToolKind.SUBAGENT,
  Task: ToolKind.SUBAGENT,
  Skill: ToolKind.SKILL,
  TodoWrite: ToolKind.TODO,
  AskUserQuestion: ToolKind.ASK_USER,
};

/** Returns the kind of a tool, by its name. */
export function kindOf(name: string): ToolKind {
  return name.startsWith("mcp__") ? ToolKind.MCP : (KINDS[name] ?? ToolKind.OTHER);
}

/** Returns what a tool call is about, for the rules of permissions and for people. */
export function subjectOf(
  toolName: string,
  input: Record<string, unknown>,
  toolCallId: string,
): MessageInitShape<typeof InputSubjectSchema> {
  const text = (key: string) => (typeof input[key] === "string" ? input[key] : "");
  const url = URL.canParse(text("url")) ? new URL(text("url")) : undefined;
  const paths = ["file_path", "notebook_path", "path"].map(text).filter((path) => path !== "");
  const host = url?.hostname ?? "";
  return { toolCallId, toolName, toolKind: kindOf(toolName), command: text("command"), paths, host };
}
