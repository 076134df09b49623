//! OpenAI messages as chat templates expect them.

use super::SessionError;
use serde_json::{Map, Value as Json};

/// Every message as templates expect it: `content` is a text (null and absent are empty, text parts are joined by a new
/// line), the arguments of tool calls are objects. Other fields pass as they are.
pub(super) fn for_template(messages: &[Json]) -> Result<Vec<Json>, SessionError> {
    messages.iter().enumerate().map(|(at, message)| one(at, message)).collect()
}

fn one(at: usize, message: &Json) -> Result<Json, SessionError> {
    let wrong = |what: String| SessionError::Message { at, what };
    let fields = message.as_object().ok_or_else(|| wrong("it is not an object".into()))?;
    if !fields.get("role").is_some_and(Json::is_string) {
        return Err(wrong("it has no role".into()));
    }
    let mut ready = fields.clone();
    ready.insert("content".into(), Json::String(content(fields).map_err(wrong)?));
    if let Some(calls) = fields.get("tool_calls").filter(|calls| !calls.is_null()) {
        let calls = calls.as_array().ok_or_else(|| wrong("tool_calls is not a list".into()))?;
        ready.insert("tool_calls".into(), calls.iter().map(call).collect());
    }
    Ok(Json::Object(ready))
}

/// The text of a message.
///
/// # Errors
/// Content that is neither text, nor text parts, nor null.
pub(super) fn content(message: &Map<String, Json>) -> Result<String, String> {
    match message.get("content") {
        None | Some(Json::Null) => Ok(String::new()),
        Some(Json::String(text)) => Ok(text.clone()),
        Some(Json::Array(parts)) => {
            let text = |part: &Json| match part {
                Json::String(text) => Ok(text.clone()),
                _ if part["type"] == "text" && part["text"].is_string() => {
                    Ok(part["text"].as_str().unwrap_or_default().to_owned())
                }
                _ => Err(format!("its content has a part of type {}, and only text has token ids here", part["type"])),
            };
            Ok(parts.iter().map(text).collect::<Result<Vec<String>, String>>()?.join("\n"))
        }
        Some(other) => Err(format!("its content is {other}, not a text")),
    }
}

/// Arguments are an object where their text is one; a text that is not stays as it was sampled.
fn call(call: &Json) -> Json {
    let mut ready = call.clone();
    let function = match ready.get_mut("function") {
        Some(function) => function,
        None => &mut ready,
    };
    if let Some(arguments) = function.get_mut("arguments") {
        let parsed = arguments.as_str().map(|text| if text.trim().is_empty() { "{}" } else { text });
        let object = parsed.and_then(|text| serde_json::from_str::<Map<String, Json>>(text).ok());
        if let Some(object) = object {
            *arguments = Json::Object(object);
        }
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_become_what_templates_expect() {
        let sent = [
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "mood": 3}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\":1,\"a\":2}"}},
                {"id": "2", "type": "function", "function": {"name": "f", "arguments": "no json"}}]}),
        ];
        let ready = for_template(&sent).unwrap();
        assert_eq!(ready[0], json!({"role": "user", "content": "a\nb", "mood": 3}));
        assert_eq!(ready[1]["content"], "");
        let first = &ready[1]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(first.as_object().unwrap().keys().collect::<Vec<_>>(), ["z", "a"]);
        assert_eq!(ready[1]["tool_calls"][1]["function"]["arguments"], "no json");
    }

    #[test]
    fn what_is_no_message_is_named() {
        let refused = |message: Json| for_template(&[message]).unwrap_err().to_string();
        assert_eq!(refused(json!("hi")), "message 0: it is not an object");
        assert_eq!(refused(json!({"content": "hi"})), "message 0: it has no role");
        assert_eq!(refused(json!({"role": "user", "content": 3})), "message 0: its content is 3, not a text");
        let image = refused(json!({"role": "user", "content": [{"type": "image_url"}]}));
        assert_eq!(image, "message 0: its content has a part of type \"image_url\", and only text has token ids here");
    }
}
