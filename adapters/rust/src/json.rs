//! Settings of a request as JSON.

use prost_types::value::Kind;
use prost_types::{Struct, Value as Stored};
use serde_json::{Map, Number, Value};

/// Beyond this not every integer is a double.
const LARGEST_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Returns an object of a request as JSON.
pub fn object(stored: &Struct) -> Value {
    Value::Object(stored.fields.iter().map(|(name, value)| (name.clone(), value_of(value))).collect::<Map<_, _>>())
}

fn value_of(stored: &Stored) -> Value {
    match &stored.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(is_true)) => Value::Bool(*is_true),
        Some(Kind::NumberValue(number)) => number_of(*number),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::StructValue(inner)) => object(inner),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(value_of).collect()),
    }
}

#[allow(clippy::cast_possible_truncation)] // it has no fraction, and is small enough
fn number_of(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() <= LARGEST_INTEGER {
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}
