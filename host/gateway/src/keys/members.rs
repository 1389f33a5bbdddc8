//! The people in a project, and what they may do there (`/v1/organization/projects/{id}/users`), in the form of OpenAI's.
//! They are kept in the project's settings, so that whoever changes them at the same time cannot undo the other's change.
//!
//! Invariant: nobody gives a role in a project, or takes one, that is not theirs to give there.

use super::projects::Seen;
use super::{KeyDesk, invalid};
use crate::books::Books;
use crate::config::check_member;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidegate_api::{MemberChange, ProjectPage, store_failed};
use tidegate_types::{Caller, CallerRole, Fault, Reach, Reject, RejectKind};

/// People in one project.
const MOST: usize = 500;
/// How often a change is tried again that others were faster than.
const TRIES: u32 = 5;

/// Who is put into a project.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    user_id: String,
    role: CallerRole,
}

/// What somebody in it becomes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    role: CallerRole,
}

/// A change as it is done: who, and what they are from then on.
struct Wanted {
    user: String,
    role: Option<CallerRole>,
    /// Only to somebody who is in it.
    known: bool,
}

impl KeyDesk {
    /// The people in a project, by their names.
    pub(crate) async fn members(&self, id: &str, by: &Caller, page: &ProjectPage) -> Result<Value, Reject> {
        let members = of(&self.find(id, by).await?);
        let behind = members.iter().filter(|(user, _)| page.after.as_ref().is_none_or(|after| *user > after));
        let data: Vec<Value> = behind.clone().take(page.limit).map(|(user, role)| shown(user, role)).collect();
        let id = |member: Option<&Value>| member.map(|member| member["id"].clone());
        let (first, last) = (id(data.first()), id(data.last()));
        let has_more = behind.count() > data.len();
        Ok(json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}))
    }

    /// One of them.
    pub(crate) async fn member(&self, id: &str, user: &str, by: &Caller) -> Result<Value, Reject> {
        let members = of(&self.find(id, by).await?);
        members.get(user).map(|role| shown(user, role)).ok_or_else(|| unknown(user))
    }

    /// Gives somebody a role in a project, or takes it.
    pub(crate) async fn change_member(
        &self,
        id: &str,
        change: MemberChange,
        by: &Caller,
        books: &Books,
    ) -> Result<Value, Reject> {
        // A project that is not there for `by` says so before the body is looked into.
        let tenant = self.find(id, by).await?.tenant;
        let wanted = Wanted::read(change)?;
        if wanted.role.is_some() {
            // Of another tenant's issuer nobody could come, and it is as one that is not there.
            let taken = self.lock();
            let issuers = taken.config.auth.issuer.iter().filter(|issuer| issuer.speaks_for(&tenant));
            check_member(&wanted.user, issuers).map_err(|why| invalid(format!("{why:#}")).at("user_id"))?;
        }
        for _ in 0..TRIES {
            let mut project = self.to_change(id, by).await?;
            let before = Value::Object(project.settings.clone()).to_string();
            wanted.apply(&mut project, by)?;
            let after = Value::Object(project.settings).to_string();
            if self.projects.update(id, &before, &after).await.map_err(store_failed)? {
                self.apply(books).await?;
                return Ok(wanted.done());
            }
        }
        let message = "others change the project at the same time; try again";
        Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("project_changed"))
    }
}

impl Wanted {
    fn read(change: MemberChange) -> Result<Self, Reject> {
        let why = |error: serde_json::Error| invalid(format!("the body is not understood: {error}"));
        Ok(match change {
            MemberChange::Add(body) => {
                let Named { user_id, role } = serde_json::from_slice(&body).map_err(why)?;
                Self { user: user_id, role: Some(role), known: false }
            }
            MemberChange::Role(user, body) => {
                let Changed { role } = serde_json::from_slice(&body).map_err(why)?;
                Self { user, role: Some(role), known: true }
            }
            MemberChange::Remove(user) => Self { user, role: None, known: true },
        })
    }

    fn apply(&self, project: &mut Seen, by: &Caller) -> Result<(), Reject> {
        let mut members = of(project);
        let before = members.get(&self.user).map(role_of);
        if self.known && before.is_none() {
            return Err(unknown(&self.user));
        }
        before.into_iter().chain(self.role).try_for_each(|role| check_role(by, role))?;
        match self.role {
            Some(role) => drop(members.insert(self.user.clone(), role.as_str().into())),
            None => drop(members.remove(&self.user)),
        }
        if members.len() > MOST {
            let message = format!(
                "a project has {MOST} members at most; let a claim of their issuer name the project (`claims.project`)"
            );
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("too_many_members"));
        }
        project.settings.insert("members".into(), json!(members));
        Ok(())
    }

    fn done(&self) -> Value {
        match self.role {
            Some(role) => shown(&self.user, &role.as_str().into()),
            None => json!({"object": "organization.project.user.deleted", "id": self.user, "deleted": true}),
        }
    }
}

/// In the tenant, owners and admins give any role in its projects; in a project as roles are given.
fn check_role(by: &Caller, role: CallerRole) -> Result<(), Reject> {
    if by.admin || by.reach == Reach::Tenant || by.role.may_give(role) {
        return Ok(());
    }
    let message =
        format!("the role `{}` in a project may not give or take the role `{}`", by.role.as_str(), role.as_str());
    Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).at("role").code("insufficient_role"))
}

fn of(project: &Seen) -> BTreeMap<String, Value> {
    let members = project.settings.get("members").and_then(Value::as_object);
    members.into_iter().flatten().map(|(user, role)| (user.clone(), role.clone())).collect()
}

/// One that this program does not know may be an owner's.
fn role_of(role: &Value) -> CallerRole {
    role.as_str().and_then(CallerRole::named).unwrap_or(CallerRole::Owner)
}

fn shown(user: &str, role: &Value) -> Value {
    json!({"object": "organization.project.user", "id": user, "role": role})
}

fn unknown(user: &str) -> Reject {
    let message = format!("there is no `{user}` in this project");
    Reject::new(RejectKind::NotFound, Fault::Client, message).code("user_not_found")
}
