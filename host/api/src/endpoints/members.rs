//! `/v1/organization/projects/{id}/users`, in the shapes of OpenAI's admin API: the people in a project, and what they may do
//! there. For owners and admins of the tenant or of the project, and for administrators.

use crate::backend::{MemberChange, ProjectPage};
use crate::body::Response;
use crate::exchange::{Exchange, json};
use crate::query::{Query, invalid, percent_decoded};
use bytes::Bytes;
use tidegate_types::Reject;

/// People of one answer, where nothing else is asked for, and at most.
const LIMIT: u64 = 20;
const MOST: u64 = 100;

/// `GET /v1/organization/projects/{id}/users?limit=N&after=USER`
pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    let id = project(&exchange)?;
    let query = Query::read(exchange.request.uri(), &["limit", "after"])?;
    let limit = query.number("limit")?.unwrap_or(LIMIT);
    if !(1..=MOST).contains(&limit) {
        return Err(invalid("limit", &format!("`limit` must be from 1 to {MOST}")));
    }
    let page = ProjectPage { after: query.get("after").map(str::to_owned), limit: limit as usize, archived: false };
    Ok(json(exchange.api.service.members(id, page, &exchange.caller).await?))
}

/// `POST /v1/organization/projects/{id}/users`
pub(crate) async fn add(exchange: Exchange) -> Result<Response, Reject> {
    let id = project(&exchange)?;
    change(exchange, id, MemberChange::Add).await
}

/// `GET /v1/organization/projects/{id}/users/{user}`
pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    let (id, user) = (project(&exchange)?, user(&exchange)?);
    Ok(json(exchange.api.service.member(id, user, &exchange.caller).await?))
}

/// `POST /v1/organization/projects/{id}/users/{user}`
pub(crate) async fn role(exchange: Exchange) -> Result<Response, Reject> {
    let (id, user) = (project(&exchange)?, user(&exchange)?);
    change(exchange, id, |body| MemberChange::Role(user, body)).await
}

/// `DELETE /v1/organization/projects/{id}/users/{user}`
pub(crate) async fn remove(exchange: Exchange) -> Result<Response, Reject> {
    let (id, user) = (project(&exchange)?, user(&exchange)?);
    Ok(json(exchange.api.service.change_member(id, MemberChange::Remove(user), &exchange.caller).await?))
}

async fn change(
    mut exchange: Exchange,
    id: String,
    change: impl FnOnce(Bytes) -> MemberChange,
) -> Result<Response, Reject> {
    let body = exchange.body().await?;
    Ok(json(exchange.api.service.change_member(id, change(body), &exchange.caller).await?))
}

fn project(exchange: &Exchange) -> Result<String, Reject> {
    let id = percent_decoded(exchange.word(0));
    id.ok_or_else(|| invalid("id", "the project's id in the path is not percent-encoded UTF-8"))
}

/// All that is behind the project's id: names of users may have slashes.
fn user(exchange: &Exchange) -> Result<String, Reject> {
    let user = exchange.rest.split_once('/').and_then(|(_, user)| percent_decoded(user));
    user.ok_or_else(|| invalid("user_id", "the user in the path is not percent-encoded UTF-8"))
}
