//! Prompts with placeholders.

use std::sync::LazyLock;

use prost_types::Struct;
use regex_lite::Regex;
use serde_json::{Map, Value};

use super::bounds::LARGEST;
use super::or;
use crate::api::{Agent, Context, ExecuteRequest};
use crate::json;
use crate::reason::{Reason, Refusal};
use crate::redact::names::is_hidden_key;

static PLACEHOLDER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\{\s*([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*\}\}").expect("a constant pattern"));
static CAPITAL: LazyLock<Regex> = LazyLock::new(|| Regex::new("([a-z0-9])([A-Z])").expect("a constant pattern"));

/// Replaces every `{{path.to.value}}` by its value: text as it is, anything else as JSON. There is no second pass: a value
/// that contains `{{…}}` stays as it is. Also returns the paths that led nowhere, which nothing stands for.
pub fn render(template: &str, data: &Value) -> Result<(String, Vec<String>), Refusal> {
    let mut out = String::new();
    let mut missing = Vec::new();
    let (mut at, mut size) = (0, 0);
    for found in PLACEHOLDER.captures_iter(template) {
        let whole = found.get(0).expect("the whole match");
        out.push_str(&template[at..whole.start()]);
        at = whole.end();
        let shown = match value_at(data, &found[1]) {
            None => {
                missing.push(found[1].to_owned());
                continue;
            }
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        size += shown.len();
        if size > LARGEST {
            return Err(Refusal::field(
                Reason::InvalidRequest,
                "prompt_template",
                "the values of the template make more than 16 MiB; give large values as files",
            ));
        }
        out.push_str(&shown);
    }
    out.push_str(&template[at..]);
    Ok((out, missing))
}

fn value_at<'a>(data: &'a Value, path: &str) -> Option<&'a Value> {
    let found = path.split('.').try_fold(data, |value, part| match value {
        Value::Object(entries) => entries.get(part),
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    })?;
    (!found.is_null()).then_some(found)
}

/// Returns the template of a run with neither prompt nor template.
pub fn default_prompt(data: &Value) -> String {
    const CONTINUES: &str = "Continue your {{brand.name}} work.";
    let is_set = |path| value_at(data, path).is_some_and(|value| value != "");
    let named: Vec<String> = ["agent.id", "agent.name"]
        .into_iter()
        .filter(|path| is_set(path))
        .map(|path| format!("{{{{{path}}}}}"))
        .collect();
    match named.as_slice() {
        [] => CONTINUES.to_owned(),
        [one] => format!("You are agent {one}. {CONTINUES}"),
        [id, name, ..] => format!("You are agent {id} ({name}). {CONTINUES}"),
    }
}

/// Returns the variables of templates. Secrets are out of reach.
pub fn data(request: &ExecuteRequest) -> Value {
    let agent = agent_data(request.agent.as_ref());
    let company = both_spellings(public(request.company.as_ref(), false));
    let mut run = both_spellings(public(request.run.as_ref(), false));
    run.insert("id".to_owned(), request.run_id.as_str().into());
    let brand = request.brand.as_ref().map_or("", |brand| &brand.name);
    let company_id = agent.get("companyId").or(company.get("id")).cloned();
    serde_json::json!({
        "agentId": agent.get("id"), "companyId": company_id, "runId": request.run_id,
        "agent": agent, "company": company, "run": run,
        "context": context_data(request.context.as_ref()),
        "brand": {"name": or(brand, "Dragoman")},
    })
}

fn set(values: &[(&str, &str)]) -> Map<String, Value> {
    let set = values.iter().filter(|(_, value)| !value.is_empty());
    set.map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
}

fn agent_data(agent: Option<&Agent>) -> Map<String, Value> {
    let Some(agent) = agent else { return both_spellings(set(&[])) };
    let mut data = set(&[
        ("id", &agent.id),
        ("companyId", &agent.company_id),
        ("name", &agent.name),
        ("adapterType", &agent.adapter_type),
    ]);
    data.insert("adapterConfig".to_owned(), Value::Object(public(agent.adapter_config.as_ref(), true)));
    both_spellings(data)
}

fn context_data(context: Option<&Context>) -> Map<String, Value> {
    let Some(context) = context else { return Map::new() };
    let mut data = both_spellings(public(context.extra.as_ref(), false));
    let mut named = set(&[
        ("taskId", or(&context.task_id, &context.issue_id)),
        ("issueId", or(&context.issue_id, &context.task_id)),
        ("wakeReason", &context.wake_reason),
        ("wakeCommentId", or(&context.wake_comment_id, &context.comment_id)),
        ("commentId", or(&context.comment_id, &context.wake_comment_id)),
        ("approvalId", &context.approval_id),
        ("approvalStatus", &context.approval_status),
    ]);
    if !context.linked_issue_ids.is_empty() {
        for name in ["issueIds", "linkedIssueIds"] {
            named.insert(name.to_owned(), context.linked_issue_ids.clone().into());
        }
    }
    data.extend(both_spellings(named));
    for (one, other) in [("taskId", "issueId"), ("wakeCommentId", "commentId"), ("linkedIssueIds", "issueIds")] {
        for (name, source) in [(one, other), (other, one)] {
            if let (None, Some(value)) = (data.get(name), data.get(source).cloned()) {
                data.insert(name.to_owned(), value);
            }
        }
    }
    data
}

/// Returns data without what is secret by its name.
fn public(data: Option<&Struct>, is_setting: bool) -> Map<String, Value> {
    match data.map(|data| without_secrets(json::object(data), is_setting)) {
        Some(Value::Object(shown)) => shown,
        _ => Map::new(),
    }
}

fn without_secrets(value: Value, is_setting: bool) -> Value {
    match value {
        Value::Object(entries) => {
            let shown = entries.into_iter().filter(|(key, value)| !is_hidden_key(key, value, is_setting));
            Value::Object(shown.map(|(key, value)| (key, without_secrets(value, is_setting))).collect())
        }
        Value::Array(items) => items.into_iter().map(|item| without_secrets(item, is_setting)).collect(),
        value => value,
    }
}

/// Adds each key in its other spelling: `company_id` and companyId.
fn both_spellings(data: Map<String, Value>) -> Map<String, Value> {
    let mut spelled = data.clone();
    for (key, value) in data {
        let (first, others) = key.split_once('_').unwrap_or((&key, ""));
        let mut camel = first.to_owned();
        for part in others.split('_') {
            let mut characters = part.chars();
            if let Some(initial) = characters.next() {
                camel.extend(initial.to_uppercase());
                camel.push_str(&characters.as_str().to_lowercase());
            }
        }
        let snake = CAPITAL.replace_all(&key, "${1}_$2").to_lowercase();
        for name in [camel, snake] {
            spelled.entry(name).or_insert_with(|| value.clone());
        }
    }
    spelled
}
