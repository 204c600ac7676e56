use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::{Agent, Context, Permissions, SessionSelector};
use prost_types::value::Kind;

fn described(features: &[Feature]) -> DescribeResponse {
    DescribeResponse {
        adapter: "test".into(),
        label: "Test".into(),
        capabilities: Some(crate::features(PermissionMode::None, features)),
        ..Default::default()
    }
}

fn accepted(request: &ExecuteRequest) -> Result<Settings, Refusal> {
    accept(request, &described(&[Feature::Prompt]), &Schema::parse("").expect("an empty schema"))
}

fn refused(change: impl FnOnce(&mut ExecuteRequest)) -> (Reason, String) {
    let mut request = ExecuteRequest::default();
    change(&mut request);
    let refusal = accepted(&request).err().expect("it is refused");
    (refusal.reason, refusal.violations.first().map_or_else(String::new, |wrong| wrong.field.clone()))
}

#[test]
fn fields_that_cannot_be_honoured_are_refused() {
    let is = |field: &str| (Reason::NotSupported, field.to_owned());
    assert_eq!(refused(|r| r.model = "m".into()), is("model"));
    assert_eq!(refused(|r| r.system_prompt = "s".into()), is("system_prompt"));
    assert_eq!(refused(|r| r.admission = Some(Default::default())), is("admission"));
    let budget = Some(crate::api::Budget::default());
    assert_eq!(refused(|r| r.limits = Some(Limits { budget, ..Default::default() })), is("limits.budget"));
    assert_eq!(refused(|r| r.attachments = vec![Default::default()]), is("attachments"));
    assert_eq!(refused(|r| r.agent_name = "a".into()), is("agent_name"));
    assert_eq!(
        refused(|r| r.permissions = Some(Permissions { auto_approve: true, ..Default::default() })),
        is("permissions")
    );
    let key = Some(Selector::ResumeRunId("r".into()));
    assert_eq!(
        refused(|r| r.session = Some(SessionSelector { selector: key, ..Default::default() })),
        is("session.resume_run_id")
    );
    assert_eq!(refused(|r| r.required_capabilities = vec![9999]).0, Reason::CapabilityMissing);
    assert_eq!(refused(|r| r.env = [("A=B".into(), String::new())].into()), (Reason::InvalidRequest, "env".into()));
}

#[test]
fn a_refusal_shows_no_secret() {
    let mut request = ExecuteRequest { auth_token: "secret-0815".into(), ..Default::default() };
    request.workspace = Some(crate::api::Workspace { cwd: "/secret-0815".into(), ..Default::default() });
    let declared = described(&[Feature::Workspace, Feature::AuthToken]);
    let refusal =
        accept(&request, &declared, &Schema::parse("").expect("an empty schema")).err().expect("no directory");
    assert!(refusal.message.contains("[redacted]") && !refusal.message.contains("0815"), "{}", refusal.message);
}

#[test]
fn settings_are_checked_against_the_schema() {
    let schema = Schema::parse(
        r#"{"type": "object", "required": ["command"], "additionalProperties": false, "properties": {
            "command": {"type": "string", "minLength": 1}, "count": {"type": "integer", "minimum": 2},
            "mode": {"enum": ["a", 1]}, "list": {"type": "array", "items": {"type": "string"}}}}"#,
    )
    .expect("a schema");
    let wrong = |settings| {
        schema.check(&settings).into_iter().map(|wrong| (wrong.field, wrong.description)).collect::<Vec<_>>()
    };
    assert!(wrong(json!({"command": "x", "count": 2, "mode": 1.0, "list": ["a"]})).is_empty());
    let found = wrong(json!({"comand": "x", "count": 1, "mode": "b", "list": [1], "x y": 1}));
    let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(
        fields,
        ["config.comand", "config.command", "config.count", "config.list[0]", "config.mode", "config[\"x y\"]"]
    );
    assert_eq!(found[0].1, "is not known; did you mean command?");
    assert!(Schema::parse("no JSON").is_err() && Schema::parse("[]").is_err());
}

#[test]
fn prompts_are_rendered_once() {
    let mut request = ExecuteRequest { run_id: "r".into(), ..Default::default() };
    request.agent = Some(Agent { id: "7".into(), name: "{{runId}}".into(), ..Default::default() });
    let secret = prost_types::Value { kind: Some(Kind::StringValue("hidden".into())) };
    let extra = prost_types::Struct { fields: [("api_token".to_owned(), secret)].into() };
    request.context = Some(Context { issue_id: "i".into(), extra: Some(extra), ..Default::default() });
    assert_eq!(accepted(&request).expect("good").prompt, "You are agent 7 ({{runId}}). Continue your Dragoman work.");
    request.task = Some(Task::PromptTemplate(
        "{{context.taskId}} {{ context.task_id }} {{context.apiToken}}{{nothing.0}}.".into(),
    ));
    let settings = accepted(&request).expect("good");
    assert_eq!(settings.prompt, "i i .");
    assert_eq!(settings.missing, ["context.apiToken", "nothing.0"]);
    request.task = Some(Task::Prompt("{{runId}}".into()));
    assert_eq!(accepted(&request).expect("good").prompt, "{{runId}}");
}

#[test]
fn bounds_are_kept() {
    let check = |request: &ExecuteRequest| {
        bounds::check(request, "ExecuteRequest").map_err(|refusal| refusal.violations[0].field.clone())
    };
    let many = |count: usize| (0..count).map(|number| (number.to_string(), String::new())).collect();
    assert_eq!(check(&ExecuteRequest { labels: many(64), ..Default::default() }), Ok(()));
    assert_eq!(check(&ExecuteRequest { labels: many(65), ..Default::default() }), Err("labels".into()));
    assert_eq!(check(&ExecuteRequest { model: "x".repeat(4097), ..Default::default() }), Err("model".into()));
    let negative = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    assert_eq!(check(&ExecuteRequest { orphan_after: negative, ..Default::default() }), Err("orphan_after".into()));
    let mut nested = prost_types::Value::default();
    for _ in 0..33 {
        nested = prost_types::Value {
            kind: Some(Kind::StructValue(prost_types::Struct { fields: [("a".into(), nested)].into() })),
        };
    }
    let config = prost_types::Struct { fields: [("a".into(), nested)].into() };
    let deep = check(&ExecuteRequest { config: Some(config), ..Default::default() });
    assert!(deep.is_err_and(|field| field.starts_with("config.a.a")));
}

#[test]
fn variables_of_a_program() {
    let own =
        [("PATH", "/bin"), ("LC_ALL", "C"), ("AWS_SECRET_ACCESS_KEY", "x"), ("DRAGOMAN_LISTEN", "y"), ("OTHER", "z")];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let kept = environment::inherited(own.into_iter(), "ACME");
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["LC_ALL", "PATH"]);
    assert!(environment::wrong_prefix("OPENAI_X").is_some() && environment::wrong_prefix("acme").is_some());
    assert_eq!(environment::wrong_prefix("ACME_"), None);
}

proptest! {
    #[test]
    fn any_text_is_a_literal_prompt(text: String) {
        let request = ExecuteRequest { task: Some(Task::Prompt(text.clone())), ..Default::default() };
        prop_assert_eq!(accepted(&request).expect("good").prompt, text);
    }

    #[test]
    fn any_template_is_rendered(text: String) {
        let request = ExecuteRequest { task: Some(Task::PromptTemplate(text)), ..Default::default() };
        prop_assert!(accepted(&request).is_ok());
    }

    #[test]
    fn a_cut_text_is_its_beginning(text: String, most in 0_usize..40) {
        let kept = cut(&text, most);
        prop_assert!(text.starts_with(kept) && kept.len() <= most);
    }
}
