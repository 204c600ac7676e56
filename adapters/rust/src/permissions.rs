//! Permission policy: which rule decides about an action. Pure.

use std::path::{Component, Path};

use regex_lite::Regex;

use crate::api::{InputSubject, PermissionDecision, PermissionRule, Permissions};

const SHELL_OPERATORS: [char; 13] = [';', '&', '|', '<', '>', '`', '$', '\n', '(', ')', '{', '}', '\r'];

/// What the permissions of a run say about an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Allow,
    Ask,
    Deny,
}

/// Decides about an action: the first rule that matches, then the default. In an unattended run, ASK is DENY. `cwd` is where
/// relative paths are meant from.
pub fn decide(permissions: Option<&Permissions>, subject: &InputSubject, cwd: &str) -> Policy {
    let Some(permissions) = permissions else { return Policy::Deny };
    if permissions.auto_approve {
        return Policy::Allow;
    }
    let rule = permissions.rules.iter().find(|rule| matches(rule, subject, cwd));
    match rule.map_or(permissions.default_decision(), PermissionRule::decision) {
        PermissionDecision::Allow => Policy::Allow,
        PermissionDecision::Deny => Policy::Deny,
        _ if permissions.interactive => Policy::Ask,
        _ => Policy::Deny,
    }
}

/// Returns whether a rule is about an action. What is unclear matches a rule that denies and none that allows.
fn matches(rule: &PermissionRule, subject: &InputSubject, cwd: &str) -> bool {
    (rule.tool_kind == 0 || rule.tool_kind == subject.tool_kind)
        && (rule.tool_name.is_empty() || rule.tool_name == subject.tool_name)
        && (rule.path_glob.is_empty() || paths_match(rule, subject, cwd))
        && (rule.command_prefix.is_empty() || command_matches(rule, subject.command.trim()))
        && (rule.host.is_empty() || host(&rule.host) == host(&subject.host))
}

fn host(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_lowercase()
}

fn paths_match(rule: &PermissionRule, subject: &InputSubject, cwd: &str) -> bool {
    let denies = rule.decision() == PermissionDecision::Deny;
    let Some(glob) = glob(&rule.path_glob) else { return denies };
    let is_named = |path: &String| glob.is_match(path) || glob.is_match(&absolute(path, cwd));
    if denies {
        return subject.paths.iter().any(is_named);
    }
    // Allowing one of several paths must not allow the others; `..` could leave what the glob names.
    let is_allowed = |path: &String| !path.split('/').any(|part| part == "..") && is_named(path);
    !subject.paths.is_empty() && subject.paths.iter().all(is_allowed)
}

/// Returns a glob as an expression: `*` and `?` match any characters, `[…]` one of some.
fn glob(glob: &str) -> Option<Regex> {
    let mut source = String::from("(?s)^");
    let mut rest = glob;
    while let Some(next) = rest.chars().next() {
        let after = &rest[next.len_utf8()..];
        let set = after.strip_prefix('!').unwrap_or(after);
        let end = set.char_indices().skip(1).find(|(_, character)| *character == ']').map(|(at, _)| at);
        rest = match (next, end) {
            ('*', _) => {
                source.push_str(".*");
                after
            }
            ('?', _) => {
                source.push('.');
                after
            }
            ('[', Some(end)) => {
                source.push_str(if set.len() < after.len() { "[^" } else { "[" });
                for character in set[..end].chars() {
                    if character.is_ascii_punctuation() && character != '-' {
                        source.push('\\');
                    }
                    source.push(character);
                }
                source.push(']');
                &set[end + 1..]
            }
            _ => {
                source.push_str(&regex_lite::escape(next.encode_utf8(&mut [0; 4])));
                after
            }
        };
    }
    Regex::new(&format!("{source}$")).ok()
}

/// Returns a path from / on, without `..`. Links are not followed: their targets may change.
fn absolute(path: &str, cwd: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in Path::new("/").join(cwd).join(path).components() {
        match component {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    format!("/{}", parts.join("/"))
}

fn command_matches(rule: &PermissionRule, command: &str) -> bool {
    if rule.decision() == PermissionDecision::Deny {
        return command.split(SHELL_OPERATORS).any(|part| part.trim().starts_with(&rule.command_prefix));
    }
    // "git status" must not allow "git status; rm -rf ~", nor "git statusx"; what is quoted is unclear.
    if command.contains(SHELL_OPERATORS)
        || [command, &rule.command_prefix].iter().any(|text| text.contains(['"', '\'', '\\']))
    {
        return false;
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    let prefix: Vec<&str> = rule.command_prefix.split_whitespace().collect();
    !prefix.is_empty() && words.starts_with(&prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ToolKind;

    fn rule(decision: PermissionDecision, fill: impl FnOnce(&mut PermissionRule)) -> PermissionRule {
        let mut rule = PermissionRule { decision: decision as i32, ..PermissionRule::default() };
        fill(&mut rule);
        rule
    }

    fn decided(rules: Vec<PermissionRule>, subject: &InputSubject) -> Policy {
        let permissions = Permissions { rules, interactive: true, ..Permissions::default() };
        decide(Some(&permissions), subject, "/work")
    }

    #[test]
    fn the_first_rule_that_matches_decides_then_the_default() {
        let subject =
            InputSubject { tool_name: "Bash".into(), tool_kind: ToolKind::Execute as i32, ..Default::default() };
        let allow = rule(PermissionDecision::Allow, |rule| rule.tool_name = "Bash".into());
        let deny = rule(PermissionDecision::Deny, |rule| rule.tool_kind = ToolKind::Execute as i32);
        assert_eq!(decided(vec![allow.clone(), deny.clone()], &subject), Policy::Allow);
        assert_eq!(decided(vec![deny, allow], &subject), Policy::Deny);
        assert_eq!(decided(vec![], &subject), Policy::Ask);
        assert_eq!(decide(Some(&Permissions::default()), &subject, ""), Policy::Deny, "unattended");
        assert_eq!(decide(None, &subject, ""), Policy::Deny);
        let all = Permissions { auto_approve: true, ..Permissions::default() };
        assert_eq!(decide(Some(&all), &subject, ""), Policy::Allow);
    }

    #[test]
    fn paths() {
        let cases = [
            ("/work/*", vec!["a.txt"], true, true),
            ("*.env", vec!["a.txt", "b/.env"], false, true),
            ("/work/*", vec!["../etc/passwd"], false, false),
            ("/etc/*", vec!["../etc/passwd"], false, true),
            ("[!ab].txt", vec!["c.txt"], true, true),
            ("[!ab].txt", vec!["a.txt"], false, false),
            ("a.b", vec!["axb"], false, false),
            ("*", vec![], false, false),
        ];
        for (glob, paths, allows, denies) in cases {
            let subject =
                InputSubject { paths: paths.iter().map(|path| (*path).into()).collect(), ..Default::default() };
            let named = |decision| rule(decision, |rule| rule.path_glob = glob.into());
            let found = decided(vec![named(PermissionDecision::Allow)], &subject) == Policy::Allow;
            assert_eq!(found, allows, "{glob} allows {paths:?}");
            let found = decided(vec![named(PermissionDecision::Deny)], &subject) == Policy::Deny;
            assert_eq!(found, denies, "{glob} denies {paths:?}");
        }
    }

    #[test]
    fn commands_and_hosts() {
        let cases = [
            ("git status", "git status -s", true, true),
            ("git status", "git statusx", false, true),
            ("git status", "git status; rm -rf ~", false, true),
            ("rm", "ls && rm -rf ~", false, true),
            ("git", "git \"status\"", false, true),
            ("git", "ls", false, false),
        ];
        for (prefix, command, allows, denies) in cases {
            let subject = InputSubject { command: command.into(), ..Default::default() };
            let named = |decision| rule(decision, |rule| rule.command_prefix = prefix.into());
            assert_eq!(decided(vec![named(PermissionDecision::Allow)], &subject) == Policy::Allow, allows, "{command}");
            assert_eq!(decided(vec![named(PermissionDecision::Deny)], &subject) == Policy::Deny, denies, "{command}");
        }
        let subject = InputSubject { host: "Example.com.".into(), ..Default::default() };
        let named = rule(PermissionDecision::Allow, |rule| rule.host = "example.com".into());
        assert_eq!(decided(vec![named], &subject), Policy::Allow);
    }
}
