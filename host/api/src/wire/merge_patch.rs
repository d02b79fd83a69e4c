//! JSON merge patch (RFC 7396).
use serde_json::{Map, Value};

/// Applies `patch` to `target`: `null` removes a member, objects merge, anything else replaces.
pub(crate) fn apply(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, change) in patch {
        match change {
            Value::Null => drop(target.shift_remove(name)),
            Value::Object(inner) => {
                let member = target.entry(name.clone()).or_insert(Value::Null);
                if let Value::Object(member) = member {
                    apply(member, inner);
                } else {
                    let mut fresh = Map::new();
                    apply(&mut fresh, inner);
                    *member = Value::Object(fresh);
                }
            }
            other => drop(target.insert(name.clone(), other.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gives_the_results_of_the_rfcs_examples() {
        let check = |target: Value, patch: Value, expected: Value| {
            let mut got = target.as_object().cloned().unwrap();
            apply(&mut got, patch.as_object().unwrap());
            assert_eq!(Value::Object(got), expected);
        };
        check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}));
        check(json!({"a": "b"}), json!({"a": null}), json!({}));
        check(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
        check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}));
        check(json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}}));
        check(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
        check(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}));
        check(json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}}));
    }
}
