//! The query of a URL.

use hyper::Uri;
use tidegate_types::Reject;

/// The names and values of a query, decoded, in order.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query, of which only the `known` names may be there: one that is misspelt would be ignored otherwise.
    pub(crate) fn read(uri: &Uri, known: &[&str]) -> Result<Self, Reject> {
        let mut pairs = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = percent_decoded(name).zip(percent_decoded(&value.replace('+', " ")));
            let Some((name, value)) = decoded else {
                return Err(invalid("query", "the query of the URL is not percent-encoded UTF-8"));
            };
            if value.contains('\0') {
                return Err(invalid(&name, &format!("`{name}` must not contain the character 0")));
            }
            // Lists come as `name[]=a` from OpenAI's clients.
            let name = name.strip_suffix("[]").map_or(name.clone(), str::to_owned);
            if !known.contains(&name.as_str()) {
                let message = format!("there is no parameter `{name}` here; there are: {}", known.join(", "));
                return Err(invalid(&name, &message).code("unknown_parameter"));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// The last value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All values of a name, also those that share one by commas.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let values = self.0.iter().filter(move |(known, _)| known == name);
        values.flat_map(|(_, value)| value.split(',')).filter(|value| !value.is_empty())
    }

    /// A whole number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Reject> {
        let parse = |value: &str| value.parse().map_err(|_| invalid(name, &format!("`{name}` must be a whole number")));
        self.get(name).map(parse).transpose()
    }
}

pub(crate) fn invalid(name: &str, message: &str) -> Reject {
    Reject::invalid(name, message.to_owned()).code("invalid_value")
}

/// Undoes percent-encoding; `None` where that is broken, or gives no UTF-8.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_or_refused() {
        assert_eq!(percent_decoded("org%2Fname%20x").as_deref(), Some("org/name x"));
        assert_eq!(percent_decoded("%C3%A4").as_deref(), Some("ä"));
        for bad in ["%", "%2", "%zz", "%+1", "%ff"] {
            assert_eq!(percent_decoded(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_query_gives_lists_and_refuses_what_is_misspelt() {
        let uri: Uri = "/x?by[]=a&by=b,c&n=5&name=a+b%2B".parse().unwrap();
        let query = Query::read(&uri, &["by", "n", "name"]).unwrap();
        assert_eq!(query.all("by").collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((query.number("n").unwrap(), query.get("name")), (Some(5), Some("a b+")));
        assert!(query.number("name").is_err());
        let reject = Query::read(&uri, &["by", "n"]).err().unwrap();
        assert!(reject.message.contains("`name`"), "{}", reject.message);
        let zero: Uri = "/x?by=a%00b".parse().unwrap();
        assert_eq!(Query::read(&zero, &["by"]).err().unwrap().param.as_deref(), Some("by"));
    }
}
