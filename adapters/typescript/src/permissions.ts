/** Permission policy: which rule decides about an action. Pure. */
import { PermissionDecision, type InputSubject, type PermissionRule, type Permissions } from "@dragoman/client/v1";

import { absolutePath } from "./environment.js";

const SHELL_OPERATORS = /[;&|<>`$\n(){}]+/;

/**
 * Returns what the permissions of a run say about an action: the first rule that matches decides, then the default.
 * In an unattended run, ASK is DENY.
 *
 * @param cwd where relative paths are meant from
 */
export function decide(
  permissions: Permissions | undefined,
  subject: InputSubject,
  cwd: string,
): "allow" | "ask" | "deny" {
  if (permissions?.autoApprove) return "allow";
  const rule = permissions?.rules.find((candidate) => matches(candidate, subject, cwd));
  const decision = rule?.decision ?? permissions?.defaultDecision;
  if (decision === PermissionDecision.ALLOW) return "allow";
  if (decision === PermissionDecision.DENY) return "deny";
  return permissions?.interactive ? "ask" : "deny";
}

/** Returns whether a rule is about an action. What is unclear matches a rule that denies and none that allows. */
function matches(rule: PermissionRule, subject: InputSubject, cwd: string): boolean {
  if (rule.toolKind && rule.toolKind !== subject.toolKind) return false;
  if (rule.toolName && rule.toolName !== subject.toolName) return false;
  if (rule.pathGlob && !pathsMatch(rule, subject, cwd)) return false;
  if (rule.commandPrefix && !commandMatches(rule, subject.command.trim())) return false;
  return !rule.host || host(rule.host) === host(subject.host);
}

function host(name: string): string {
  return name.toLowerCase().replace(/\.$/, "");
}

function pathsMatch(rule: PermissionRule, { paths }: InputSubject, cwd: string): boolean {
  const glob = globOf(rule.pathGlob);
  const isNamed = (path: string) => glob.test(path) || glob.test(absolutePath(path, cwd));
  if (rule.decision === PermissionDecision.DENY) return paths.some(isNamed);
  // Allowing one of several paths must not allow the others; `..` could leave what the glob names.
  return paths.length > 0 && paths.every((path) => !path.split("/").includes("..") && isNamed(path));
}

/** Returns a glob as an expression: `*` and `?` match any characters, `[…]` one of some. */
function globOf(glob: string): RegExp {
  const source = glob.replace(/\[(!?)([^\]]+)\]|[*?]|[\\^$.|+(){}[\]]/g, (found, not?: string, set?: string) => {
    if (set !== undefined) return `[${not ? "^" : ""}${set.replace(/[\\^]/g, "\\$&")}]`;
    return found === "*" ? ".*" : found === "?" ? "." : `\\${found}`;
  });
  return new RegExp(`^${source}$`, "s");
}

function commandMatches(rule: PermissionRule, command: string): boolean {
  if (rule.decision === PermissionDecision.DENY) {
    return command.split(SHELL_OPERATORS).some((part) => part.trim().startsWith(rule.commandPrefix));
  }
  // "git status" must not allow "git status; rm -rf ~", nor "git statusx"; what is quoted is unclear.
  if (SHELL_OPERATORS.test(command) || /["'\\]/.test(command + rule.commandPrefix)) return false;
  const words = command.split(/\s+/);
  const prefix = rule.commandPrefix.split(/\s+/).filter((word) => word !== "");
  return prefix.length > 0 && prefix.every((word, i) => words[i] === word);
}
