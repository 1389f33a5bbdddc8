//! Projects that are made while the server runs (`/v1/organization/projects`), beside those of its config, in the form of
//! OpenAI's with what else they have here. The store keeps them; gateways of one store have the same ones.

use super::administrators::last_administrator;
use super::{KeyDesk, Taken, bounds, invalid};
use crate::books::Books;
use crate::config::{Config, ProjectConfig, check_tenant, project_id};
use serde_json::{Map, Value, json};
use tidegate_api::{ProjectPage, store_failed};
use tidegate_store::{Ended, KeptProject};
use tidegate_types::clock::unix_ms;
use tidegate_types::{Caller, Fault, ProjectId, Reject, RejectKind};

/// Projects of a tenant that are made here and not archived.
const MOST: u32 = 1000;

/// A project as `by` sees it.
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) tenant: String,
    pub(super) settings: Map<String, Value>,
    created_ms: u64,
    /// Who made it; `None` for one of the config.
    created_by: Option<String>,
    archived_ms: Option<u64>,
}

impl KeyDesk {
    /// The projects that `by` may see: those of the config first, then the oldest.
    pub(crate) async fn projects(&self, by: &Caller, page: &ProjectPage) -> Result<Value, Reject> {
        let all = self.seen(by).await?;
        let mut listed: Vec<&Seen> =
            all.iter().filter(|project| page.archived || project.archived_ms.is_none()).collect();
        if let Some(after) = &page.after {
            let at = listed.iter().position(|project| project.id == *after);
            let at = at.ok_or_else(|| unknown().at("after"))?;
            listed.drain(..=at);
        }
        let has_more = listed.len() > page.limit;
        listed.truncate(page.limit);
        let id = |project: Option<&&Seen>| project.map(|project| project.id.clone());
        let (first, last) = (id(listed.first()), id(listed.last()));
        let data: Vec<Value> = listed.into_iter().map(shown).collect();
        Ok(json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}))
    }

    /// One project.
    pub(crate) async fn project(&self, id: &str, by: &Caller) -> Result<Value, Reject> {
        Ok(shown(&self.find(id, by).await?))
    }

    /// Makes a project as `body` describes it.
    pub(crate) async fn make_project(&self, body: &[u8], by: &Caller, books: &Books) -> Result<Value, Reject> {
        let mut settings = object(body)?;
        no_members(&settings)?;
        let tenant = match settings.remove("tenant") {
            None => by.tenant.as_str().to_owned(),
            Some(Value::String(tenant)) if tenant == by.tenant.as_str() => tenant,
            Some(Value::String(tenant)) if by.admin && !tenant.is_empty() => {
                check_tenant(&tenant).map_err(|error| invalid(error.to_string()).at("tenant"))?;
                tenant
            }
            Some(Value::String(_)) if !by.admin => {
                let message = "only who administers the server makes projects of other tenants";
                return Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).at("tenant").code("not_admin"));
            }
            Some(_) => return Err(invalid("`tenant` must be the name of a tenant".into()).at("tenant")),
        };
        self.check_project(&settings, &settings, by)?;
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| Reject::internal(Fault::Operator, error.to_string()))?;
        let project = KeptProject {
            id: format!("{}{:032x}", ProjectId::PREFIX, u128::from_le_bytes(bytes)),
            tenant,
            settings: Value::Object(settings).to_string(),
            created_ms: unix_ms(),
            created_by: by.name(),
            archived_ms: None,
        };
        if !self.projects.add(&project, MOST).await.map_err(store_failed)? {
            let message = format!(
                "the tenant has {MOST} projects, the most that it may, or has archived too many in a day; archive some, or wait"
            );
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("too_many_projects"));
        }
        self.apply(books).await?;
        Ok(shown(&kept(project)))
    }

    /// Changes what `body` names; `null` takes something away.
    pub(crate) async fn change_project(
        &self,
        id: &str,
        body: &[u8],
        by: &Caller,
        books: &Books,
    ) -> Result<Value, Reject> {
        let changes = object(body)?;
        no_members(&changes)?;
        let mut project = self.to_change(id, by).await?;
        let before = Value::Object(project.settings.clone()).to_string();
        for (field, value) in &changes {
            match value {
                Value::Null => drop(project.settings.remove(field)),
                value => drop(project.settings.insert(field.clone(), value.clone())),
            }
        }
        self.check_project(&project.settings, &changes, by)?;
        let after = Value::Object(project.settings.clone()).to_string();
        if !self.projects.update(id, &before, &after).await.map_err(store_failed)? {
            let message = "somebody else has changed or archived the project meanwhile; look at it and try again";
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("project_changed"));
        }
        self.apply(books).await?;
        Ok(shown(&project))
    }

    /// Ends a project: its keys let nobody in from now on. What was used for it stays in the books.
    pub(crate) async fn archive_project(&self, id: &str, by: &Caller, books: &Books) -> Result<Value, Reject> {
        self.to_change(id, by).await?;
        let may = self.lock().keeps_an_administrator(|key| key.project.as_deref() == Some(id));
        match self.projects.archive(id, unix_ms(), may).await.map_err(store_failed)? {
            // Whoever was faster wanted the same.
            Ended::Done | Ended::Unknown => {}
            Ended::Refused => return Err(last_administrator(id)),
        }
        self.apply(books).await?;
        self.project(id, by).await
    }

    /// A project that `by` sees and that can be changed here.
    pub(super) async fn to_change(&self, id: &str, by: &Caller) -> Result<Seen, Reject> {
        let project = self.find(id, by).await?;
        let conflict = |message: &str, code: &str| {
            Err(Reject::new(RejectKind::Conflict, Fault::Client, message.to_owned()).code(code))
        };
        if project.created_by.is_none() {
            return conflict("the project is of the server's config, which its operator changes", "project_of_config");
        }
        match project.archived_ms {
            Some(_) => conflict("the project is archived; make another", "project_archived"),
            None => Ok(project),
        }
    }

    pub(super) async fn find(&self, id: &str, by: &Caller) -> Result<Seen, Reject> {
        self.seen(by).await?.into_iter().find(|project| project.id == id).ok_or_else(unknown)
    }

    async fn seen(&self, by: &Caller) -> Result<Vec<Seen>, Reject> {
        let made = self.projects.all().await.map_err(store_failed)?;
        let mut all = of_config(&self.lock().config);
        all.extend(made.into_iter().map(kept));
        all.retain(|project| by.admin || by.reaches(&project.tenant, Some(&project.id)));
        Ok(all)
    }

    /// Checks the settings as those of a project of the config, of which `by` has `said` these.
    fn check_project(
        &self,
        settings: &Map<String, Value>,
        said: &Map<String, Value>,
        by: &Caller,
    ) -> Result<(), Reject> {
        let parsed: ProjectConfig =
            serde_json::from_value(Value::Object(settings.clone())).map_err(|error| invalid(error.to_string()))?;
        if parsed.name.is_none() {
            return Err(invalid("`name` is required: what people call the project".into()).at("name"));
        }
        let budget = parsed.budget.map(|budget| budget.to_budget("the project")).transpose();
        let taken = self.lock();
        bounds::check_names(by, settings, said, &taken.config)?;
        parsed.check(&taken.config).and(budget.map(drop)).map_err(|error| invalid(format!("{error:#}")))
    }
}

impl Taken {
    /// Adds the projects that are kept and not archived to the config's.
    pub(super) fn add_projects(&self, config: &mut Config) {
        for project in self.projects.iter().filter(|project| project.archived_ms.is_none()) {
            match understood(project) {
                Ok(settings) => {
                    let tenant = config.tenants.entry(project.tenant.clone()).or_default();
                    tenant.projects.insert(project.id.clone(), settings);
                }
                Err(error) => tracing::error!(project = project.id, "a kept project is not understood: {error:#}"),
            }
        }
    }
}

/// Its settings, of which nothing fails for all others.
fn understood(project: &KeptProject) -> anyhow::Result<ProjectConfig> {
    let settings: ProjectConfig = serde_json::from_str(&project.settings)?;
    settings.budget.map(|budget| budget.to_budget(&project.id)).transpose()?;
    Ok(settings)
}

fn of_config(config: &Config) -> Vec<Seen> {
    let all = config.tenants.iter().flat_map(|(tenant, of)| of.projects.iter().map(move |project| (tenant, project)));
    let seen = |(tenant, (name, project)): (&String, (&String, &ProjectConfig))| {
        let mut settings = Map::new();
        settings.insert("name".into(), project.name.as_ref().unwrap_or(name).clone().into());
        settings.insert("limits".into(), json!(project.limits));
        settings.insert("zero_retention".into(), project.zero_retention.into());
        for (field, names) in [("models", &project.models), ("plugins", &project.plugins)] {
            names.as_ref().and_then(|names| settings.insert(field.into(), json!(names)));
        }
        settings.insert("members".into(), json!(project.members));
        if let Some(budget) = project.budget {
            settings.insert("budget".into(), json!(budget));
        }
        let id = project_id(tenant, name).to_string();
        Seen { id, tenant: tenant.clone(), settings, created_ms: 0, created_by: None, archived_ms: None }
    };
    all.map(seen).collect()
}

fn kept(project: KeptProject) -> Seen {
    let KeptProject { id, tenant, settings, created_ms, created_by, archived_ms } = project;
    let settings = serde_json::from_str(&settings).unwrap_or_default();
    Seen { id, tenant, settings, created_ms, created_by: Some(created_by), archived_ms }
}

fn shown(project: &Seen) -> Value {
    let settings = &project.settings;
    let field = |name: &str| settings.get(name).cloned().unwrap_or(Value::Null);
    json!({
        "id": project.id, "object": "organization.project", "name": field("name"),
        "created_at": project.created_ms / 1000, "archived_at": project.archived_ms.map(|ms| ms / 1000),
        "status": if project.archived_ms.is_some() { "archived" } else { "active" },
        "tenant": project.tenant, "created_by": project.created_by, "models": field("models"), "plugins": field("plugins"),
        "limits": field("limits"), "budget": field("budget"),
        "zero_retention": settings.get("zero_retention").cloned().unwrap_or(false.into()),
    })
}

fn object(body: &[u8]) -> Result<Map<String, Value>, Reject> {
    serde_json::from_slice(body)
        .map_err(|error| invalid(format!("the body must be an object that describes the project: {error}")))
}

/// People have paths of their own, on which each of them is checked.
fn no_members(body: &Map<String, Value>) -> Result<(), Reject> {
    match body.contains_key("members") {
        true => {
            Err(invalid("people are put into a project at /v1/organization/projects/{id}/users".into()).at("members"))
        }
        false => Ok(()),
    }
}

/// Another tenant's looks like one that never was.
fn unknown() -> Reject {
    Reject::new(RejectKind::NotFound, Fault::Client, "there is no such project").code("project_not_found")
}
