//! `/v1/organization/projects/{id}/users`, in the shapes of OpenAI's admin API: the people in a project, and what they may do
//! there. For owners and admins of the tenant or of the project, and for administrators.

use crate::administration::{Administration, MemberChange, ProjectPage};
use crate::body::Response;
use crate::exchange::Exchange;
use crate::query::{Query, invalid, percent_decoded};
use bytes::Bytes;
use tidegate_types::Reject;

/// People of one answer, where nothing else is asked for, and at most.
const LIMIT: u64 = 20;
const MOST: u64 = 100;

/// `GET /v1/organization/projects/{id}/users?limit=N&after=USER`
pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    let project = project(&exchange)?;
    let query = Query::read(exchange.request.uri(), &["limit", "after"])?;
    let limit = query.number("limit")?.unwrap_or(LIMIT);
    if !(1..=MOST).contains(&limit) {
        return Err(invalid("limit", &format!("`limit` must be from 1 to {MOST}")));
    }
    let page = ProjectPage { after: query.get("after").map(str::to_owned), limit: limit as usize, archived: false };
    exchange.administer(Administration::Members { project, page }).await
}

/// `POST /v1/organization/projects/{id}/users`
pub(crate) async fn add(exchange: Exchange) -> Result<Response, Reject> {
    let project = project(&exchange)?;
    change(exchange, project, MemberChange::Add).await
}

/// `GET /v1/organization/projects/{id}/users/{user}`
pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    let (project, user) = (project(&exchange)?, user(&exchange)?);
    exchange.administer(Administration::Member { project, user }).await
}

/// `POST /v1/organization/projects/{id}/users/{user}`
pub(crate) async fn role(exchange: Exchange) -> Result<Response, Reject> {
    let (project, user) = (project(&exchange)?, user(&exchange)?);
    change(exchange, project, |body| MemberChange::Role(user, body)).await
}

/// `DELETE /v1/organization/projects/{id}/users/{user}`
pub(crate) async fn remove(exchange: Exchange) -> Result<Response, Reject> {
    let (project, user) = (project(&exchange)?, user(&exchange)?);
    exchange.administer(Administration::ChangeMember { project, change: MemberChange::Remove(user) }).await
}

async fn change(
    mut exchange: Exchange,
    project: String,
    change: impl FnOnce(Bytes) -> MemberChange,
) -> Result<Response, Reject> {
    let change = change(exchange.settings().await?);
    exchange.administer(Administration::ChangeMember { project, change }).await
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
