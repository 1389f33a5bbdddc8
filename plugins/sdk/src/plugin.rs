//! What every plugin has: a descriptor, a typed config, and errors that name what is wrong.
//!
//! Invariant: a config key that the descriptor does not declare never reaches [`Plugin::configure`].

use crate::descriptor::Descriptor;
use crate::json::{members, quote};
use serde::de::DeserializeOwned;
use std::fmt;

/// A plugin. The stages that it serves are traits of their own.
pub trait Plugin: Sized + 'static {
    /// The settings, typed. A key that the operator left out has the default that the descriptor states; `()` where there are
    /// none.
    type Config: DeserializeOwned;

    /// Name, version, settings and needs. Called once at load, on an instance of its own; must be pure: a call of any
    /// capability but `log` refuses the load.
    fn describe() -> Descriptor;

    /// Checks the config and builds what is expensive (tables, automata). Called once per instance, before any
    /// stage call.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with the key, its value and the remedy; the gateway refuses to start with it.
    fn configure(config: Self::Config) -> Result<Self, Error>;
}

/// What a plugin says when it cannot do its work. Not found, no opinion, pass and refuse are results. The contract's (see
/// [`crate::types`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The operator must change the config.
    InvalidConfig(String),
    /// The caller must change the request.
    InvalidInput(String),
    /// A grant is missing or used up.
    Denied(String),
    /// Try again later.
    Unavailable(String),
    /// Something that the plugin waited for took too long.
    Timeout(String),
    /// Not something that this plugin does.
    Unsupported(String),
    /// For logs only.
    Other(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (case, message) = match self {
            Self::InvalidConfig(m) => ("invalid config", m),
            Self::InvalidInput(m) => ("invalid input", m),
            Self::Denied(m) => ("denied", m),
            Self::Unavailable(m) => ("unavailable", m),
            Self::Timeout(m) => ("timeout", m),
            Self::Unsupported(m) => ("unsupported", m),
            Self::Other(m) => ("error", m),
        };
        write!(f, "{case}: {message}")
    }
}

impl std::error::Error for Error {}

/// Builds a plugin from the operator's JSON, as the host does: empty text means no settings.
///
/// # Errors
/// [`Error::InvalidConfig`] for text that is not a JSON object, a key that the descriptor does not declare, a
/// value of the wrong type, or whatever the plugin itself refuses.
pub fn configure<P: Plugin>(json: &str) -> Result<P, Error> {
    let json = if json.trim().is_empty() { "{}" } else { json };
    let config = with_defaults(json, &P::describe()).map_err(Error::InvalidConfig)?;
    // Of a type without fields, as `()` is, the wire form is `null`.
    let empty = |error| if config == "{}" { serde_json::from_str("null").map_err(|_| error) } else { Err(error) };
    let config = serde_json::from_str(&config).or_else(empty).map_err(|e| Error::InvalidConfig(e.to_string()))?;
    P::configure(config)
}

/// The given keys with the defaults of the others, as JSON.
fn with_defaults(json: &str, descriptor: &Descriptor) -> Result<String, String> {
    let given = members(json).map_err(|problem| format!("a config is a JSON object: {problem}"))?;
    let settings = descriptor.declared_settings();
    if let Some((unknown, _)) = given.iter().find(|(key, _)| settings.iter().all(|s| s.name() != *key)) {
        return Err(unknown_key(unknown, descriptor));
    }
    let value = |name: &str| given.iter().rfind(|(key, _)| key == name).map(|(_, value)| *value);
    let member = |s: &crate::Setting| Some(format!("{}:{}", quote(s.name()), value(s.name()).or(s.default())?));
    Ok(format!("{{{}}}", settings.iter().filter_map(member).collect::<Vec<_>>().join(",")))
}

fn unknown_key(key: &str, descriptor: &Descriptor) -> String {
    let known: Vec<&str> = descriptor.declared_settings().iter().map(|s| s.name()).collect();
    if known.is_empty() {
        return format!("unknown key `{key}`: `{}` has no settings", descriptor.name());
    }
    format!("unknown key `{key}`; `{}` knows: {}", descriptor.name(), known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setting;

    #[derive(Debug, serde::Deserialize)]
    struct Config {
        depth: u32,
        label: Option<String>,
    }
    #[derive(Debug)]
    struct Probe(Config);
    impl Plugin for Probe {
        type Config = Config;
        fn describe() -> Descriptor {
            Descriptor::new("probe", "0.1.0", "A probe")
                .setting(Setting::integer("depth", 3, 1, 9, "How deep"))
                .setting(Setting::optional_text("label", "What to call it"))
        }
        fn configure(config: Config) -> Result<Self, Error> {
            Ok(Self(config))
        }
    }

    #[test]
    fn keys_left_out_have_the_descriptors_defaults() {
        for json in ["", " ", "{}"] {
            let probe: Probe = configure(json).unwrap();
            assert_eq!((probe.0.depth, probe.0.label), (3, None), "{json:?}");
        }
        let probe: Probe = configure(r#"{"depth":5,"label":"x"}"#).unwrap();
        assert_eq!((probe.0.depth, probe.0.label.as_deref()), (5, Some("x")));
    }

    #[derive(Debug)]
    struct Plain;
    impl Plugin for Plain {
        type Config = ();
        fn describe() -> Descriptor {
            Descriptor::new("plain", "0.1.0", "Has no settings")
        }
        fn configure((): ()) -> Result<Self, Error> {
            Ok(Self)
        }
    }

    #[test]
    fn a_plugin_without_settings_has_no_type_for_them() {
        for json in ["", "{}", " { } "] {
            configure::<Plain>(json).unwrap();
        }
        let Err(Error::InvalidConfig(message)) = configure::<Plain>(r#"{"a":1}"#) else { panic!("it was accepted") };
        assert_eq!(message, "unknown key `a`: `plain` has no settings");
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused_by_name() {
        let check = |json, expected: &str| {
            let Err(Error::InvalidConfig(message)) = configure::<Probe>(json) else { panic!("{json} was accepted") };
            assert!(message.contains(expected), "{message}");
        };
        check(r#"{"dept":5}"#, "unknown key `dept`; `probe` knows: depth, label");
        check(r#"{"depth":"five"}"#, "invalid type");
        check("[1]", "a config is a JSON object: invalid type: sequence");
        check("{", "JSON object");
    }
}
