//! `/v1/organization/projects`, in the shapes of OpenAI's admin API: parts of a tenant with limits, a budget and objects of
//! their own. For owners and admins of the tenant, and for administrators.

use crate::administration::{Administration, ProjectPage};
use crate::body::Response;
use crate::exchange::Exchange;
use crate::query::{Query, invalid, percent_decoded};
use tidegate_types::Reject;

/// Projects of one answer, where nothing else is asked for, and at most.
const LIMIT: u64 = 20;
const MOST: u64 = 100;

/// `GET /v1/organization/projects?limit=N&after=ID&include_archived=true`
pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    let query = Query::read(exchange.request.uri(), &["limit", "after", "include_archived"])?;
    let limit = query.number("limit")?.unwrap_or(LIMIT);
    if !(1..=MOST).contains(&limit) {
        return Err(invalid("limit", &format!("`limit` must be from 1 to {MOST}")));
    }
    let archived = match query.get("include_archived") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(invalid("include_archived", "`include_archived` must be true or false")),
    };
    let page = ProjectPage { after: query.get("after").map(str::to_owned), limit: limit as usize, archived };
    exchange.administer(Administration::Projects(page)).await
}

/// `POST /v1/organization/projects`
pub(crate) async fn create(mut exchange: Exchange) -> Result<Response, Reject> {
    let body = exchange.settings().await?;
    exchange.administer(Administration::MakeProject(body)).await
}

/// `GET /v1/organization/projects/{id}`
pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    let id = named(&exchange)?;
    exchange.administer(Administration::Project(id)).await
}

/// `POST /v1/organization/projects/{id}`
pub(crate) async fn change(mut exchange: Exchange) -> Result<Response, Reject> {
    let (id, body) = (named(&exchange)?, exchange.settings().await?);
    exchange.administer(Administration::ChangeProject { id, body }).await
}

/// `POST /v1/organization/projects/{id}/archive`: its keys let nobody in from now on.
pub(crate) async fn archive(exchange: Exchange) -> Result<Response, Reject> {
    let id = named(&exchange)?;
    exchange.administer(Administration::ArchiveProject(id)).await
}

fn named(exchange: &Exchange) -> Result<String, Reject> {
    let id = percent_decoded(exchange.word(0));
    id.ok_or_else(|| invalid("id", "the project's id in the path is not percent-encoded UTF-8"))
}
