//! How large a request may be.

use prost::Message;
use prost_reflect::{DynamicMessage, FieldDescriptor, MapKey, ReflectMessage as _, Value};

use super::cut;
use crate::descriptors;
use crate::reason::{Reason, Refusal};

const KIB: usize = 1 << 10;
/// Of a request, and of the text that a template becomes.
pub const LARGEST: usize = 16 << 20;
const MOST_ELEMENTS: usize = 20_000;
const MOST_VALUES: usize = 2_000;
const DEEPEST: usize = 32;
/// Seconds: ten years.
const LONGEST_PERIOD: i64 = 315_360_000;
/// Characters of a map's key that a path shows.
pub const SHOWN_KEY: usize = 64;

/// What one field may hold, in entries and bytes.
#[derive(Clone, Copy)]
struct Bound {
    entries: usize,
    name: usize,
    text: usize,
    total: usize,
}

const fn of(entries: usize, name: usize, text: usize) -> Bound {
    Bound { entries, name, text, total: LARGEST }
}

const DEFAULT: Bound = of(256, 512, 4 * KIB);
const ANY_TEXT: Bound = of(256, 512, LARGEST);
const VARIABLES: Bound = Bound { entries: 1024, name: 256, text: 128 * KIB, total: 512 * KIB };
const VALUES: Bound = of(MOST_VALUES, KIB, LARGEST);

/// The bounds of the contract by message and field.
fn bound_of(field: &FieldDescriptor) -> Bound {
    match (field.parent_message().name(), field.name()) {
        ("ExecuteRequest", "prompt" | "system_prompt")
        | ("Instructions", "text")
        | ("SessionSelector", "handover")
        | ("InputAnswer", "text" | "value_json" | "updated_input_json" | "message")
        | ("Value", "string_value") => ANY_TEXT,
        ("ExecuteRequest", "prompt_template") => of(256, 512, 64 * KIB),
        ("ExecuteRequest", "auth_token") | ("McpStdio", "args") => of(256, 512, 32 * KIB),
        ("ExecuteRequest", "mcp_servers") | ("Workspace", "additional_directories") | ("Fallback", "on") => {
            of(64, 512, 4 * KIB)
        }
        ("Agent", "id") | ("Context", "linked_issue_ids") => of(256, 512, 512),
        ("SkillFiles", "content") => of(1024, KIB, LARGEST),
        ("McpStdio", "env") => Bound { entries: 128, name: 256, text: 32 * KIB, total: 128 * KIB },
        ("McpHttp", "url") => of(256, 512, 8 * KIB),
        ("McpHttp", "headers") => Bound { entries: 64, name: 256, text: 8 * KIB, total: 64 * KIB },
        ("Permissions", "rules") => of(512, 512, 4 * KIB),
        ("Fallback", "adapters") => of(16, 512, 256),
        ("Fallback", "configs") => of(16, 256, 4 * KIB),
        ("Struct", "fields") | ("ListValue", "values") => VALUES,
        (_, "adapter" | "run_id") => of(256, 512, 256),
        (_, "env") => VARIABLES,
        (_, "labels") => of(64, 128, KIB),
        (_, "task_key" | "agent_id" | "company_id") => of(256, 512, 512),
        _ => DEFAULT,
    }
}

/// Rejects a request that is too large in any way. `name` is its type's in the contract.
pub fn check<M: Message>(request: &M, name: &str) -> Result<(), Refusal> {
    let size = request.encoded_len();
    if size > LARGEST {
        return Err(Refusal::new(
            Reason::MessageTooLarge,
            format!("the request has {size} bytes, and at most 16 MiB are accepted; give large inputs as files"),
        ));
    }
    Walk { elements: 0, values: 0 }.message(&descriptors::dynamic(request, name), "", 0)
}

struct Walk {
    elements: usize,
    values: usize,
}

type Checked = Result<(), Refusal>;

fn fail(path: &str, description: impl Into<String>) -> Checked {
    Err(Refusal::field(Reason::InvalidRequest, path, description))
}

/// Returns whether paths name the keys alone within a message, as people write them.
fn is_plain(message: &DynamicMessage) -> bool {
    let descriptor = message.descriptor();
    matches!(descriptor.full_name(), "google.protobuf.Struct" | "google.protobuf.ListValue" | "google.protobuf.Value")
}

impl Walk {
    fn message(&mut self, message: &DynamicMessage, path: &str, mut depth: usize) -> Checked {
        match message.descriptor().full_name() {
            "google.protobuf.Duration" => return duration(message, path),
            "google.protobuf.Struct" | "google.protobuf.ListValue" => {
                depth += 1;
                if depth > DEEPEST {
                    return fail(path, format!("must not be nested more than {DEEPEST} levels deep"));
                }
            }
            "google.protobuf.Value" => {
                self.values += 1;
                if self.values > MOST_VALUES {
                    return fail(
                        path,
                        format!(
                            "the objects of the request have more than {MOST_VALUES} values together; the one too many is here"
                        ),
                    );
                }
            }
            _ => {}
        }
        for (field, value) in message.fields() {
            let inner = match path {
                _ if is_plain(message) => path.to_owned(),
                "" => field.name().to_owned(),
                _ => format!("{path}.{}", field.name()),
            };
            self.field(&field, value, &inner, depth)?;
        }
        Ok(())
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value, path: &str, depth: usize) -> Checked {
        let limit = bound_of(field);
        let entries = match value {
            Value::List(items) => items.len(),
            Value::Map(entries) => entries.len(),
            _ => 0,
        };
        if entries > limit.entries {
            return fail(path, format!("must not have more than {} entries", limit.entries));
        }
        match value {
            Value::List(items) => {
                for (number, item) in items.iter().enumerate() {
                    self.one(item, limit, &format!("{path}[{number}]"), depth)?;
                }
            }
            Value::Map(entries) => {
                let mut total = 0;
                for (key, value) in entries {
                    let MapKey::String(name) = key else { continue };
                    if name.len() > limit.name {
                        return fail(path, format!("a name in it must not have more than {} bytes", limit.name));
                    }
                    total += name.len() + text_size(value);
                    self.one(value, limit, &format!("{path}.{}", cut(name, SHOWN_KEY)), depth)?;
                }
                if total > limit.total {
                    return fail(
                        path,
                        format!("its names and values must not have more than {} bytes together", limit.total),
                    );
                }
            }
            _ => self.one(value, limit, path, depth)?,
        }
        Ok(())
    }

    fn one(&mut self, value: &Value, limit: Bound, path: &str, depth: usize) -> Checked {
        self.elements += 1;
        if self.elements > MOST_ELEMENTS {
            return fail(
                path,
                format!(
                    "the request has more than {MOST_ELEMENTS} fields, list items and map entries together; the one too many is here"
                ),
            );
        }
        if let Value::Message(inner) = value {
            self.message(inner, path, depth)?;
        }
        if text_size(value) > limit.text {
            return fail(path, format!("must not have more than {} bytes", limit.text));
        }
        Ok(())
    }
}

fn text_size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Bytes(data) => data.len(),
        _ => 0,
    }
}

fn duration(message: &DynamicMessage, path: &str) -> Checked {
    let number = |name| message.get_field_by_name(name);
    let seconds = number("seconds").and_then(|value| value.as_i64()).unwrap_or_default();
    let nanos = number("nanos").and_then(|value| value.as_i32()).unwrap_or_default();
    match () {
        () if seconds < 0 || nanos < 0 => fail(path, "must not be negative"),
        () if nanos >= 1_000_000_000 => fail(path, "must have nanos below 1,000,000,000"),
        () if seconds > LONGEST_PERIOD => fail(path, format!("must not be longer than {LONGEST_PERIOD} s")),
        () => Ok(()),
    }
}
