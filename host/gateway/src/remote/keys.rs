//! `tidegate key list|new|rotate|revoke`.

use super::{Remote, answer, encoded, listed, or_dash, table, when};
use crate::cli::{KeyCommand, NewKeyArgs};
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::io::Write;
use tidegate_egress::Method;
use tidegate_types::clock::unix_ms;

/// Does what the command says.
pub async fn key(command: KeyCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        KeyCommand::List { at, all } => {
            let keys = Remote::to(&at)?.call(Method::GET, "/admin/keys".into(), None).await?;
            if at.json {
                return answer(out, &keys);
            }
            show(out, &serde_json::from_slice(&keys)?, all)
        }
        KeyCommand::New(args) => {
            let body = Some(description(&args));
            let made = Remote::to(&args.at)?.call(Method::POST, "/admin/keys".into(), body).await?;
            made_key(out, &made, args.at.json)
        }
        KeyCommand::Rotate { name, at, grace_s } => {
            let path = format!("/admin/keys/{}/rotate?grace_s={grace_s}", encoded(&name));
            let made = Remote::to(&at)?.call(Method::POST, path, Some(json!({}))).await?;
            made_key(out, &made, at.json)
        }
        KeyCommand::Revoke { name, at } => {
            let path = format!("/admin/keys/{}", encoded(&name));
            let gone = Remote::to(&at)?.call(Method::DELETE, path, None).await?;
            if at.json {
                return answer(out, &gone);
            }
            Ok(writeln!(out, "The key `{name}` is refused from now on.")?)
        }
    }
}

fn made_key(out: &mut dyn Write, made: &[u8], json: bool) -> anyhow::Result<()> {
    if json {
        return answer(out, made);
    }
    let made: Value = serde_json::from_slice(made)?;
    let key = made["key"].as_str().context("the server's answer has no key")?;
    Ok(writeln!(out, "The key, shown this once:\n\n    {key}\n")?)
}

fn description(args: &NewKeyArgs) -> Value {
    let mut body = Map::new();
    body.insert("name".into(), args.name.clone().into());
    let mut add = |field: &str, value: Option<Value>| value.map(|value| body.insert(field.into(), value));
    add("tenant", args.tenant.clone().map(Into::into));
    add("project", args.project.clone().map(Into::into));
    add("expires", args.expires.clone().map(Into::into));
    add("admin", args.admin.then_some(Value::Bool(true)));
    add("role", args.role.clone().map(Into::into));
    add("project_role", args.project_role.clone().map(Into::into));
    add("models", (!args.models.is_empty()).then(|| args.models.clone().into()));
    add("endpoints", (!args.endpoints.is_empty()).then(|| args.endpoints.clone().into()));
    add("plugins", (!args.plugins.is_empty()).then(|| args.plugins.clone().into()));
    Value::Object(body)
}

fn show(out: &mut dyn Write, keys: &Value, all: bool) -> anyhow::Result<()> {
    let row = |key: &Value| {
        let state = if key["revoked_at"].is_null() { when(&key["expires_at"]) } else { "revoked".into() };
        let role = match (&key["admin"], key["project_role"].as_str()) {
            (Value::Bool(true), _) => "administrator".into(),
            (_, Some(role)) => format!("{role} in project"),
            _ => or_dash(&key["role"]),
        };
        let project = or_dash(&key["project"]);
        let (name, tenant) = (or_dash(&key["name"]), or_dash(&key["tenant"]));
        vec![name, tenant, project, role, listed(&key["models"]), when(&key["created_at"]), state]
    };
    let keys = keys["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let now = unix_ms() / 1000;
    let is_valid = |key: &&Value| key["revoked_at"].is_null() && key["expires_at"].as_u64().is_none_or(|end| end > now);
    let rows: Vec<_> = keys.iter().filter(|key| all || is_valid(key)).map(row).collect();
    Ok(table::write(out, &["NAME", "TENANT", "PROJECT", "ROLE", "MODELS", "CREATED", "EXPIRES"], &rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_words_that_the_servers_answer_has() {
        let key = |name: &str, expires_at: u64| json!({"name": name, "tenant": "t", "created_at": 0, "expires_at": expires_at, "revoked_at": null});
        let mut out = Vec::new();
        show(&mut out, &json!({"data": [key("k", 32_503_680_000), key("ended", 86_400)]}), false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["NAME", "TENANT", "PROJECT", "ROLE", "MODELS", "CREATED", "EXPIRES"]);
        assert_eq!(lines[1], ["k", "t", "-", "-", "all", "1970-01-01", "3000-01-01"]);
        assert_eq!(lines.len(), 2, "one that has ended lets nobody in");
        let mut out = Vec::new();
        show(&mut out, &json!({"data": [key("ended", 86_400)]}), true).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("1970-01-02"));
    }
}
