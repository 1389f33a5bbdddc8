//! `tidegate project list|new|change|archive`, and who is in one: `members|add-member|remove-member`.

use super::{Remote, answer, encoded, listed, or_dash, table, when};
use crate::cli::{ProjectCommand, ProjectTerms};
use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use std::io::Write;
use tidegate_egress::Method;

const PATH: &str = "/v1/organization/projects";

/// Does what the command says.
pub async fn project(command: ProjectCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    let (at, path, body) = match command {
        ProjectCommand::List { at, all } => {
            let projects = pages(&Remote::to(&at)?, &format!("{PATH}?limit=100&include_archived={all}")).await?;
            if at.json {
                return answer(out, json!({"object": "list", "data": projects}).to_string().as_bytes());
            }
            return show(out, &projects);
        }
        ProjectCommand::Members { id, at } => {
            let members = pages(&Remote::to(&at)?, &format!("{PATH}/{}/users?limit=100", encoded(&id))).await?;
            if at.json {
                return answer(out, json!({"object": "list", "data": members}).to_string().as_bytes());
            }
            return show_members(out, &members);
        }
        ProjectCommand::RemoveMember { id, user, at } => {
            let path = format!("{PATH}/{}/users/{}", encoded(&id), encoded(&user));
            let gone = Remote::to(&at)?.call(Method::DELETE, path, None).await?;
            if at.json {
                return answer(out, &gone);
            }
            return Ok(writeln!(out, "`{user}` is in that project no more.")?);
        }
        ProjectCommand::AddMember { id, user, role, at } => {
            let body = json!({"user_id": user, "role": role});
            let path = format!("{PATH}/{}/users", encoded(&id));
            let done = Remote::to(&at)?.call(Method::POST, path, Some(body)).await?;
            if at.json {
                return answer(out, &done);
            }
            return show_members(out, &[serde_json::from_slice(&done)?]);
        }
        ProjectCommand::New(args) => {
            let mut body = terms(&args.terms)?;
            body.insert("name".into(), args.name.into());
            args.tenant.and_then(|tenant| body.insert("tenant".into(), tenant.into()));
            (args.at, PATH.to_owned(), body)
        }
        ProjectCommand::Change { id, at, name, terms: changed } => {
            let mut body = terms(&changed)?;
            name.and_then(|name| body.insert("name".into(), name.into()));
            if body.is_empty() {
                bail!("nothing is to be changed; name what, such as --name or --limits");
            }
            (at, format!("{PATH}/{}", encoded(&id)), body)
        }
        ProjectCommand::Archive { id, at } => (at, format!("{PATH}/{}/archive", encoded(&id)), Map::new()),
    };
    let done = Remote::to(&at)?.call(Method::POST, path, Some(Value::Object(body))).await?;
    if at.json {
        return answer(out, &done);
    }
    show(out, &[serde_json::from_slice(&done)?])
}

/// All pages.
async fn pages(remote: &Remote, path: &str) -> anyhow::Result<Vec<Value>> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = remote.call(Method::GET, format!("{path}{after}"), None).await?;
        let mut page: Value = serde_json::from_slice(&page)?;
        let data = page["data"].as_array_mut().context("the server's answer has no list")?;
        all.append(data);
        match page["last_id"].as_str() {
            Some(last) if page["has_more"] == true => after = format!("&after={}", encoded(last)),
            _ => return Ok(all),
        }
    }
}

fn terms(args: &ProjectTerms) -> anyhow::Result<Map<String, Value>> {
    let mut body = Map::new();
    for (field, names) in [("models", &args.models), ("plugins", &args.plugins)] {
        if !names.is_empty() {
            body.insert(field.into(), names.clone().into());
        }
    }
    for (field, text) in [("limits", &args.limits), ("budget", &args.budget)] {
        if let Some(text) = text {
            let value: Value = serde_json::from_str(text).with_context(|| format!("--{field} is no JSON"))?;
            body.insert(field.into(), value);
        }
    }
    args.zero_retention.and_then(|zero| body.insert("zero_retention".into(), zero.into()));
    Ok(body)
}

fn show_members(out: &mut dyn Write, members: &[Value]) -> anyhow::Result<()> {
    let rows: Vec<_> = members.iter().map(|member| vec![or_dash(&member["id"]), or_dash(&member["role"])]).collect();
    Ok(table::write(out, &["USER", "ROLE"], &rows)?)
}

fn show(out: &mut dyn Write, projects: &[Value]) -> anyhow::Result<()> {
    let row = |project: &Value| {
        let kept = if project["zero_retention"] == true { "nothing" } else { "yes" };
        let made = if project["created_by"].is_null() { "config".into() } else { when(&project["created_at"]) };
        let [id, name, tenant, status] = ["id", "name", "tenant", "status"].map(|field| or_dash(&project[field]));
        vec![id, name, tenant, status, listed(&project["models"]), kept.into(), made]
    };
    let rows: Vec<_> = projects.iter().map(row).collect();
    Ok(table::write(out, &["ID", "NAME", "TENANT", "STATUS", "MODELS", "KEPT", "CREATED"], &rows)?)
}
