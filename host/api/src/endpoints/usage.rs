//! `GET /v1/usage` and `GET /v1/usage/costs`: what was used and what it cost, by time and by what is asked for. Callers
//! see their own project, owners and admins of a tenant all of its projects, administrators everything.

use crate::body::Response;
use crate::exchange::{Exchange, json, with_type};
use crate::query::{Query, invalid};
use hyper::header::{HeaderName, HeaderValue};
use tidegate_store::{GroupBy, Only, UsageQuery, UsageSum};
use tidegate_types::clock::unix_s;
use tidegate_types::{Act, Caller, Fault, Reject, RejectKind};
use tidegate_wire::usage::{UsageBucket, costs_page, usage_csv, usage_page};

pub(crate) async fn usage(exchange: Exchange) -> Result<Response, Reject> {
    let asked = Asked::read(&exchange, WIDTHS)?;
    let (buckets, next) = asked.answer(&exchange).await?;
    Ok(match asked.csv {
        true => csv(&buckets, next),
        false => json(usage_page(&buckets, next)),
    })
}

pub(crate) async fn costs(exchange: Exchange) -> Result<Response, Reject> {
    let asked = Asked::read(&exchange, COSTS_WIDTHS)?;
    let (buckets, next) = asked.answer(&exchange).await?;
    Ok(match asked.csv {
        true => csv(&buckets, next),
        false => json(costs_page(&buckets, next, &exchange.api.service.currency())),
    })
}

/// Where the next page begins: a table of CSV cannot say itself that there is more.
const NEXT_PAGE: HeaderName = HeaderName::from_static("x-next-page");

fn csv(buckets: &[UsageBucket], next: Option<u64>) -> Response {
    let mut response = with_type("text/csv; charset=utf-8", usage_csv(buckets));
    if let Some(next) = next {
        response.headers_mut().insert(NEXT_PAGE, HeaderValue::from(next));
    }
    response
}

const KNOWN: [&str; 11] = [
    "start_time",
    "end_time",
    "bucket_width",
    "group_by",
    "project_ids",
    "api_key_ids",
    "user_ids",
    "models",
    "limit",
    "page",
    "format",
];

/// Widths of a bucket: the name, seconds, and how many there are by default and at most.
type Widths = [(&'static str, u64, u64, u64); 3];
const WIDTHS: Widths = [("1m", 60, 60, 1440), ("1h", 3600, 24, 168), ("1d", 86_400, 7, 31)];
/// OpenAI's costs have more days.
const COSTS_WIDTHS: Widths = [WIDTHS[0], WIDTHS[1], ("1d", 86_400, 7, 180)];

/// Sums in one answer.
const MOST_SUMS: u32 = 10_000;

/// Buckets of a CSV without a `limit`, which has the whole time that was asked for.
const MOST_CSV_BUCKETS: u64 = 100_000;

/// The year 9999: what comes later are milliseconds in the place of seconds, or a mistake.
const MOST_S: u64 = 253_402_300_800;

struct Asked {
    whose: Whose,
    only: Only,
    start_s: u64,
    /// Where the clock would begin the bucket that `start_s` is in.
    origin_s: u64,
    end_s: u64,
    width_s: u64,
    buckets: u64,
    by: GroupBy,
    csv: bool,
}

impl Asked {
    fn read(exchange: &Exchange, widths: Widths) -> Result<Self, Reject> {
        let query = Query::read(exchange.request.uri(), &KNOWN)?;
        let width = width(&query, widths)?;
        let start = query.number("start_time")?.ok_or_else(|| {
            invalid("start_time", "`start_time` is required: Unix seconds of when the first bucket begins")
        })?;
        let page = query.number("page")?;
        let end_s = query.number("end_time")?.unwrap_or_else(|| unix_s() + 1);
        let start_s = page.unwrap_or(start).max(start);
        if end_s <= start_s {
            return Err(invalid("end_time", "`end_time` must be after `start_time`"));
        }
        if end_s > MOST_S {
            return Err(invalid("end_time", "`end_time` must be Unix seconds, before the year 10000"));
        }
        // Buckets lie where clocks would put them, whatever the start; the first has what came from the start on.
        let origin_s = start_s / width.seconds * width.seconds;
        let csv = match query.get("format") {
            None | Some("json") => false,
            Some("csv") => true,
            Some(_) => return Err(invalid("format", "`format` must be json or csv")),
        };
        let buckets = match width.limit {
            Some(limit) => limit,
            None if csv => whole((end_s - origin_s).div_ceil(width.seconds), width.name)?,
            None => width.default,
        };
        let by = group_by(&query)?;
        let only = Only {
            keys: named(&query, "api_key_ids")?,
            users: named(&query, "user_ids")?,
            models: named(&query, "models")?,
        };
        let whose = whose(exchange, &query)?;
        Ok(Self { whose, only, start_s, origin_s, end_s, width_s: width.seconds, buckets, by, csv })
    }

    /// The buckets, and where the next page begins.
    async fn answer(&self, exchange: &Exchange) -> Result<(Vec<UsageBucket>, Option<u64>), Reject> {
        let last_s = self.end_s.min(self.origin_s + self.buckets * self.width_s);
        let query = UsageQuery {
            tenant: self.whose.tenant.clone(),
            projects: self.whose.projects.clone(),
            only: self.only.clone(),
            start_ms: self.start_s * 1000,
            origin_ms: self.origin_s * 1000,
            end_ms: last_s * 1000,
            width_ms: self.width_s * 1000,
            by: self.by,
            limit: MOST_SUMS + 1,
        };
        let sums = exchange.api.service.usage(query, &exchange.caller).await?;
        if sums.len() > MOST_SUMS as usize {
            let message = format!("the answer has more than {MOST_SUMS} sums; ask for fewer buckets by `limit`");
            return Err(invalid("limit", &message));
        }
        let next = (last_s < self.end_s).then_some(last_s);
        Ok((self.buckets(last_s, sums), next))
    }

    fn buckets(&self, last_s: u64, sums: Vec<UsageSum>) -> Vec<UsageBucket> {
        let starts = (self.origin_s..last_s).step_by(usize::try_from(self.width_s).unwrap_or(usize::MAX));
        let mut buckets: Vec<UsageBucket> = starts
            .map(|start_s| UsageBucket {
                start_s: start_s.max(self.start_s),
                end_s: (start_s + self.width_s).min(self.end_s),
                results: Vec::new(),
            })
            .collect();
        for sum in sums {
            if let Some(bucket) = usize::try_from(sum.bucket).ok().and_then(|bucket| buckets.get_mut(bucket)) {
                bucket.results.push(sum.totals);
            }
        }
        buckets
    }
}

/// How long a bucket is, and how many there are.
struct Width {
    name: &'static str,
    seconds: u64,
    default: u64,
    limit: Option<u64>,
}

fn width(query: &Query, widths: Widths) -> Result<Width, Reject> {
    let asked = query.get("bucket_width").unwrap_or("1d");
    let Some((name, seconds, default, most)) = widths.into_iter().find(|(known, ..)| *known == asked) else {
        return Err(invalid("bucket_width", "`bucket_width` must be 1m, 1h or 1d"));
    };
    let limit = query.number("limit")?;
    if limit.is_some_and(|limit| limit == 0 || limit > most) {
        return Err(invalid("limit", &format!("`limit` must be from 1 to {most} for buckets of {name}")));
    }
    Ok(Width { name, seconds, default, limit })
}

/// All buckets of the time that was asked for.
fn whole(buckets: u64, name: &str) -> Result<u64, Reject> {
    if buckets > MOST_CSV_BUCKETS {
        let message = format!(
            "the time asked for has {buckets} buckets of {name}; the most in one CSV is {MOST_CSV_BUCKETS}: ask for \
             wider ones, a shorter time, or page by page by `limit`"
        );
        return Err(invalid("bucket_width", &message));
    }
    Ok(buckets)
}

fn group_by(query: &Query) -> Result<GroupBy, Reject> {
    let mut by = GroupBy::default();
    for name in query.all("group_by") {
        match name {
            "project_id" => by.project = true,
            "api_key_id" => by.key = true,
            "user_id" => by.user = true,
            "model" | "line_item" => by.model = true,
            "kind" => by.kind = true,
            _ => {
                let message = "`group_by` must be of project_id, api_key_id, user_id, model, line_item and kind";
                return Err(invalid("group_by", message));
            }
        }
    }
    Ok(by)
}

/// Whose usage.
struct Whose {
    /// `None` is everybody's.
    tenant: Option<String>,
    /// All where it is empty.
    projects: Vec<String>,
}

/// Names of a kind that one question may have.
const MOST_NAMES: usize = 100;

fn named(query: &Query, list: &str) -> Result<Vec<String>, Reject> {
    let names: Vec<String> = query.all(list).map(str::to_owned).collect();
    match names.len() {
        0..=MOST_NAMES => Ok(names),
        count => Err(invalid(list, &format!("`{list}` has {count} names; the most is {MOST_NAMES}"))),
    }
}

fn whose(exchange: &Exchange, query: &Query) -> Result<Whose, Reject> {
    let Caller { tenant, admin, .. } = &*exchange.caller;
    let projects = named(query, "project_ids")?;
    if *admin {
        return Ok(Whose { tenant: None, projects });
    }
    let tenant = Some(tenant.to_string());
    if exchange.caller.may(Act::Projects) {
        // Another tenant's project has used nothing of this one's, as one that never was.
        return Ok(Whose { tenant, projects });
    }
    let own = exchange.caller.owner().as_str();
    if projects.iter().any(|asked| asked != own) {
        let message =
            "this key sees the usage of its own project only; an owner or admin of the tenant sees all of them";
        return Err(Reject::new(RejectKind::Forbidden, Fault::Client, message).at("project_ids").code("not_admin"));
    }
    Ok(Whose { tenant, projects: vec![own.to_owned()] })
}
