//! How much effort a model is asked to make, as other APIs than the chat's say it.
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::taken::Taken;

/// All values of `effort`. The chat has no `max`.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", MAX];
const MAX: &str = "max";

/// Reads `effort` of an object.
///
/// # Errors
/// 400: it is none of those that there are.
pub(crate) fn read(fields: &mut Taken) -> Result<Option<&'static str>, RequestError> {
    const NAME: &str = "effort";
    let Some(asked) = fields.text(NAME)? else { return Ok(None) };
    match EFFORTS.into_iter().find(|effort| *effort == asked) {
        Some(effort) => Ok(Some(effort)),
        None => {
            let (path, [all @ .., last]) = (fields.path(NAME), EFFORTS);
            let message = format!("{path} must be {} or {last}, got {:?}", all.join(", "), Shown(&asked));
            Err(RequestError::field(path, message))
        }
    }
}

/// `reasoning_effort` of a chat.
pub(crate) fn of_chat(effort: &'static str) -> &'static str {
    if effort == MAX { "xhigh" } else { effort }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_effort_is_one_of_the_chats_and_any_other_is_refused() {
        let read = |effort: serde_json::Value| read(&mut Taken::of(json!({ "effort": effort }), "reasoning").unwrap());
        let chats: Vec<&str> = EFFORTS.map(|effort| of_chat(read(json!(effort)).unwrap().unwrap())).to_vec();
        assert_eq!(chats, ["none", "minimal", "low", "medium", "high", "xhigh", "xhigh"]);
        assert_eq!(read(json!(null)).unwrap(), None);
        let much = "reasoning.effort must be none, minimal, low, medium, high, xhigh or max, got \"much\"";
        assert_eq!(read(json!("much")).unwrap_err().to_string(), much);
        let long = read(json!("x".repeat(2 << 20))).unwrap_err().to_string();
        assert!(long.chars().count() < 300, "a client's value is cut: {long}");
    }
}
