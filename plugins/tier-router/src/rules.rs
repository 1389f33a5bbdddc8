//! A row of the table: conditions, all of which must hold, and the models for it.

use crate::code::holds_code;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::cell::OnceCell;
use tidegate_plugin_sdk::{Message, Role, RouteRequest};

/// A rule. A condition that is left out holds always.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Best first.
    pub models: Vec<String>,
    /// Fewest tokens of the prompt.
    min_tokens: Option<u32>,
    /// Most tokens of the prompt.
    max_tokens: Option<u32>,
    /// The question holds code.
    code: Option<bool>,
    /// The request offers tools.
    tools: Option<bool>,
    /// The caller's priority class is one of these.
    classes: Option<Vec<String>>,
    /// The caller's API key has one of these names.
    keys: Option<Vec<String>>,
}

/// What rules look at.
#[derive(Debug)]
pub struct Asked<'a> {
    tokens: u32,
    /// The last message of the user.
    question: Option<&'a Message>,
    /// Whether that holds code, once a rule wants to know.
    code: OnceCell<bool>,
    tools: bool,
    class: Option<String>,
    key: Option<String>,
}

impl<'a> Asked<'a> {
    /// What a request says of itself.
    pub fn read(request: &'a RouteRequest) -> Self {
        Self {
            tokens: request.prompt_tokens,
            question: request.messages.iter().rfind(|message| message.role == Role::User),
            code: OnceCell::new(),
            tools: attr(&request.attrs, "tools").unwrap_or(false),
            class: attr(&request.attrs, "class"),
            key: attr(&request.attrs, "key"),
        }
    }

    fn code(&self) -> bool {
        let texts = |message: &'a Message| message.texts().map(|(_, text)| text).collect::<Vec<_>>();
        *self.code.get_or_init(|| self.question.is_some_and(|message| holds_code(&texts(message))))
    }
}

/// The value of an attribute, where it is there and of the wanted type.
pub fn attr<T: DeserializeOwned>(attrs: &[(String, String)], name: &str) -> Option<T> {
    let (_, json) = attrs.iter().find(|(key, _)| key == name)?;
    serde_json::from_str(json).ok()
}

const CLASSES: [&str; 3] = ["interactive", "standard", "batch"];

impl Rule {
    /// Refuses what could never fit.
    ///
    /// # Errors
    /// What is wrong, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        if self.models.is_empty() {
            return Err("`models` is empty; name one".into());
        }
        if let (Some(min), Some(max)) = (self.min_tokens, self.max_tokens)
            && min > max
        {
            return Err(format!("`min_tokens` is {min}, above `max_tokens`, which is {max}"));
        }
        match self.classes.iter().flatten().find(|class| !CLASSES.contains(&class.as_str())) {
            Some(class) => Err(format!("there is no class `{class}`; there are {}", CLASSES.join(", "))),
            None => Ok(()),
        }
    }

    /// Whether all conditions hold. Code is looked for last: all else costs next to nothing, however long the question is.
    pub fn fits(&self, asked: &Asked<'_>) -> bool {
        let among = |names: &Option<Vec<String>>, name: &Option<String>| match (names, name) {
            (None, _) => true,
            (Some(names), Some(name)) => names.contains(name),
            (Some(_), None) => false,
        };
        self.min_tokens.is_none_or(|min| asked.tokens >= min)
            && self.max_tokens.is_none_or(|max| asked.tokens <= max)
            && self.tools.is_none_or(|tools| asked.tools == tools)
            && among(&self.classes, &asked.class)
            && among(&self.keys, &asked.key)
            && self.code.is_none_or(|code| asked.code() == code)
    }

    /// The conditions in words, for the log.
    pub fn describe(&self) -> String {
        let mut said = Vec::new();
        said.extend(self.min_tokens.map(|min| format!("at least {min} tokens")));
        said.extend(self.max_tokens.map(|max| format!("at most {max} tokens")));
        said.extend(self.code.map(|code| if code { "code".to_owned() } else { "no code".into() }));
        said.extend(self.tools.map(|tools| if tools { "tools".to_owned() } else { "no tools".into() }));
        said.extend(self.classes.as_ref().map(|classes| format!("class {}", classes.join(" or "))));
        said.extend(self.keys.as_ref().map(|keys| format!("key {}", keys.join(" or "))));
        if said.is_empty() { "always".into() } else { said.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> Rule {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn code_is_looked_for_only_where_a_rule_hangs_on_it() {
        let attrs = vec![("key".to_owned(), "\"free\"".to_owned())];
        let messages = vec![Message::text("m0", Role::User, "```\nx\n```")];
        let request = RouteRequest { messages, attrs, ..RouteRequest::default() };
        let asked = Asked::read(&request);
        assert!(rule(r#"{"models":["a"],"keys":["free"]}"#).fits(&asked));
        assert!(!rule(r#"{"models":["a"],"keys":["paid"],"code":true}"#).fits(&asked));
        assert_eq!(asked.code.get(), None);
        assert!(rule(r#"{"models":["a"],"keys":["free"],"code":true}"#).fits(&asked));
        assert_eq!(asked.code.get(), Some(&true));
    }
}
