//! Reading what a URL says: its path's words and its query.

use crate::exchange::Exchange;
use crate::query::percent_decoded;
use tidegate_store::conversations::{Order, Page};
use tidegate_types::Reject;

/// Items on a page where the caller does not say, and at most; OpenAI's.
const PAGE: u32 = 20;
const MAX_PAGE: u32 = 100;

impl Exchange {
    /// What stands for the `n`th `{}` of the route.
    pub(crate) fn word(&self, n: usize) -> &str {
        self.rest.split('/').nth(n).unwrap_or_default()
    }

    /// A parameter of the query.
    pub(crate) fn param(&self, name: &str) -> Result<Option<String>, Reject> {
        param(self.request.uri().query().unwrap_or_default(), name)
    }

    /// Which part of a list is asked for.
    pub(crate) fn page(&self) -> Result<Page, Reject> {
        let limit = match self.param("limit")? {
            None => PAGE,
            Some(limit) => match limit.parse() {
                Ok(limit @ 1..=MAX_PAGE) => limit,
                _ => return Err(bad("limit", &format!("a whole number from 1 to {MAX_PAGE}"))),
            },
        };
        let order = match self.param("order")?.as_deref() {
            None | Some("desc") => Order::Descending,
            Some("asc") => Order::Ascending,
            Some(_) => return Err(bad("order", "asc or desc")),
        };
        Ok(Page { after: self.param("after")?.unwrap_or_default(), limit, order })
    }
}

pub(crate) fn bad(name: &str, allowed: &str) -> Reject {
    Reject::invalid(name, format!("`{name}` must be {allowed}")).code("invalid_value")
}

/// For a page that is empty since nothing is known of what it would begin behind: it is not the end of the list.
pub(crate) fn unknown_after() -> Reject {
    bad("after", "the id of something that this list has or had")
}

/// The character 0 is in no text that a database keeps, and Postgres takes none to look for.
fn param(query: &str, name: &str) -> Result<Option<String>, Reject> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let Some(value) = value else { return Ok(None) };
    let decoded = percent_decoded(&value.replace('+', " ")).filter(|text| !text.contains('\0'));
    decoded.map(Some).ok_or_else(|| bad(name, "text, percent-encoded, without the character 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_found_by_its_whole_name() {
        let of = |query, name| param(query, name).unwrap();
        assert_eq!(of("a=1&order=asc", "order").as_deref(), Some("asc"));
        assert_eq!(of("reorder=asc", "order"), None);
        assert_eq!(of("q=two+words%21", "q").as_deref(), Some("two words!"));
        assert!(param("q=%ff", "q").is_err());
        for wrong in ["after=%ff", "after=item%00", "after=%"] {
            assert_eq!(param(wrong, "after").unwrap_err().param.as_deref(), Some("after"), "{wrong}");
        }
    }
}
