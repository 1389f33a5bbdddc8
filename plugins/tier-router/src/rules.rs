//! A row of the table: conditions, all of which must hold, and the models for it.

use crate::code::looks_like_code;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_plugin_sdk::{Role, RouteRequest};

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
pub struct Asked {
    tokens: u32,
    code: bool,
    tools: bool,
    class: Option<String>,
    key: Option<String>,
}

impl Asked {
    /// The question is the last message of the user.
    pub fn read(request: &RouteRequest) -> Self {
        let question = request.messages.iter().rfind(|message| message.role == Role::User);
        Self {
            tokens: request.prompt_tokens,
            code: question.is_some_and(|message| message.texts().any(|(_, text)| looks_like_code(text))),
            tools: attr(&request.attrs, "tools").unwrap_or(false),
            class: attr(&request.attrs, "class"),
            key: attr(&request.attrs, "key"),
        }
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

    /// Whether all conditions hold.
    pub fn fits(&self, asked: &Asked) -> bool {
        let among = |names: &Option<Vec<String>>, name: &Option<String>| match (names, name) {
            (None, _) => true,
            (Some(names), Some(name)) => names.contains(name),
            (Some(_), None) => false,
        };
        self.min_tokens.is_none_or(|min| asked.tokens >= min)
            && self.max_tokens.is_none_or(|max| asked.tokens <= max)
            && self.code.is_none_or(|code| asked.code == code)
            && self.tools.is_none_or(|tools| asked.tools == tools)
            && among(&self.classes, &asked.class)
            && among(&self.keys, &asked.key)
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
