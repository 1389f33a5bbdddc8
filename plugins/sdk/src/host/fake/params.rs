//! Parameters of a question to a model: those that the host takes, in the bounds that it has.

use crate::json::members;
use crate::plugin::Error;
use std::collections::BTreeMap;

const MAX_STOPS: usize = 4;
const MAX_STOP_BYTES: usize = 256;

/// `params` is a JSON object, or empty.
pub(super) fn check(params: &str) -> Result<(), Error> {
    if params.trim().is_empty() {
        return Ok(());
    }
    let members = members(params).map_err(|_| Error::InvalidInput("`params` is not a JSON object".into()))?;
    // Of one that stands there twice, the last one counts.
    let params: BTreeMap<String, &str> = members.into_iter().collect();
    // As in OpenAI's API, null is what was not given.
    params.iter().filter(|(_, value)| value.trim() != "null").try_for_each(|(name, value)| check_one(name, value))
}

fn check_one(name: &str, value: &str) -> Result<(), Error> {
    let good = match name {
        "max_tokens" => serde_json::from_str::<u32>(value).is_ok_and(|tokens| tokens > 0),
        "temperature" => is_within(value, 2.0),
        "top_p" => is_within(value, 1.0),
        "seed" => serde_json::from_str::<i64>(value).is_ok(),
        "stop" => is_stop(value),
        _ => return Err(Error::InvalidInput(format!("there is no parameter `{}`", name.escape_debug()))),
    };
    if good { Ok(()) } else { Err(Error::InvalidInput(format!("`{name}` cannot be {value}"))) }
}

fn is_within(value: &str, most: f64) -> bool {
    serde_json::from_str::<f64>(value).is_ok_and(|number| (0.0..=most).contains(&number))
}

/// One string, or some.
fn is_stop(value: &str) -> bool {
    let list = serde_json::from_str::<Vec<String>>(value).or_else(|_| serde_json::from_str(value).map(|one| vec![one]));
    let is_one = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
    list.is_ok_and(|list| list.len() <= MAX_STOPS && list.iter().all(is_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_that_the_host_takes() {
        for good in [
            "",
            " ",
            "{}",
            r#"{"max_tokens":5,"temperature":0.5,"top_p":1,"seed":7,"stop":"."}"#,
            r#"{"stop":["a","b","c","d"]}"#,
            r#"{"max_tokens":0,"max_tokens":1}"#,
            r#"{"seed":-1}"#,
            r#"{"max_tokens": null, "temperature":null,"top_p":null,"seed":null,"stop":null,"tools":null}"#,
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("[]", "not a JSON object"),
            (r#"{"max_tokens":0}"#, "`max_tokens` cannot be 0"),
            (r#"{"max_tokens":"5"}"#, "`max_tokens`"),
            (r#"{"max_tokens":1.0}"#, "`max_tokens`"),
            (r#"{"temperature":3}"#, "`temperature` cannot be 3"),
            (r#"{"top_p":-1}"#, "`top_p`"),
            (r#"{"seed":18446744073709551615}"#, "`seed`"),
            (r#"{"seed":1.0}"#, "`seed`"),
            (r#"{"stop":["a","b","c","d","e"]}"#, "`stop`"),
            (r#"{"stop":""}"#, "`stop`"),
            (r#"{"stop":[null]}"#, "`stop`"),
            (r#"{"tools":[]}"#, "there is no parameter `tools`"),
        ] {
            assert!(matches!(check(bad), Err(Error::InvalidInput(said)) if said.contains(why)), "{bad}");
        }
    }
}
