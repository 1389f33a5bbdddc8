//! A guard that asks an HTTP service: for the many vendors and house services that have no plugin of their own.
//! The service decides on prompts, on text from outside and on whole answers. Read next: [`ask`], then [`answer`].

pub mod answer;
pub mod ask;
pub mod places;

use answer::Answer;
use ask::{Stage, role};
use serde::Deserialize;
use tidegate_plugin_sdk::host::clock;
use tidegate_plugin_sdk::host::http::{self, Request};
use tidegate_plugin_sdk::host::metrics::{count, observe};
use tidegate_plugin_sdk::{
    Capability, Context, Descriptor, Error, Message, Output, OutputGuard, Plugin, Prompt, PromptGuard, Setting,
    Verdict, some_of,
};

const MESSAGE: &str = "This server does not allow that.";

/// What the host lets stand before a secret: with more, each question would fail.
const MAX_PREFIX_BYTES: usize = 64;

/// The settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    url: String,
    secret: Option<String>,
    secret_header: String,
    secret_prefix: String,
    timeout_ms: u32,
    roles: Vec<String>,
    message: String,
}

/// The plugin.
#[derive(Debug)]
pub struct WebhookGuard(Config);

impl Plugin for WebhookGuard {
    type Config = Config;

    fn describe() -> Descriptor {
        let roles = ["system", "developer", "user", "assistant", "tool"];
        let prefix = format!("{{\"type\":\"string\",\"maxLength\":{MAX_PREFIX_BYTES}}}");
        let summary = "Asks an HTTP service what to do about prompts and answers";
        Descriptor::new("webhook-guard", env!("CARGO_PKG_VERSION"), summary)
            .setting(Setting::required("url", r#"{"type":"string"}"#, "Where the service is"))
            .setting(Setting::optional_text("secret", "Name of the secret that the service wants to see"))
            .setting(Setting::text("secret_header", "authorization", "The header that it goes into"))
            .setting(Setting::new("secret_prefix", &prefix, "\"Bearer \"", "What stands before it"))
            .setting(Setting::integer("timeout_ms", 1_000, 10, 30_000, "How long the service may take"))
            .setting(Setting::some_choices("roles", &roles, &["user", "tool"], "Whose messages of a prompt it sees"))
            .setting(Setting::text("message", MESSAGE, "What the client reads where the service gives no message"))
            .needs(Capability::Http, "asks the service")
            .needs(Capability::Secrets, "shows the service who asks")
            .metric("asked", "questions to the service")
            .metric("ask_ms", "how long the service took, or was waited for")
            .mutates()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        if !is_url(&config.url) {
            let problem =
                format!("`url` is `{}`; it is https:// or http:// with a host, without a user and `#`", config.url);
            return Err(Error::InvalidConfig(problem));
        }
        let len = config.secret_prefix.len();
        if len > MAX_PREFIX_BYTES {
            let problem = format!("`secret_prefix` has {len} bytes; the host sends at most {MAX_PREFIX_BYTES}");
            return Err(Error::InvalidConfig(problem));
        }
        some_of("roles", &config.roles)?;
        Ok(Self(config))
    }
}

/// Whether a request can go there: each one to what is none would fail, and all that is asked about be refused.
fn is_url(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else { return false };
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let is_sound = !authority.contains('@') && !url.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#');
    // An address of version 6 stands in brackets, with colons of its own.
    let (host, port) = match authority.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let is_host = !host.is_empty() && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_sound && is_host && port.is_none_or(is_port)
}

impl PromptGuard for WebhookGuard {
    fn inspect_prompt(&self, ctx: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        let sees = |message: &&Message| {
            let from_outside = message.attrs.iter().any(|(key, _)| key == "source");
            from_outside || self.0.roles.iter().any(|chosen| chosen == role(&message.role))
        };
        self.ask(Stage::Prompt, ctx, &prompt.messages.iter().filter(sees).collect::<Vec<_>>())
    }
}

impl OutputGuard for WebhookGuard {
    fn inspect_output(&self, ctx: &Context, output: &Output) -> Result<Verdict, Error> {
        self.ask(Stage::Answer, ctx, &output.choices.iter().collect::<Vec<_>>())
    }
}

impl WebhookGuard {
    fn ask(&self, stage: Stage, ctx: &Context, messages: &[&Message]) -> Result<Verdict, Error> {
        if messages.iter().all(|message| message.texts().next().is_none()) {
            return Ok(Verdict::allow());
        }
        let Config { url, secret, secret_header, secret_prefix, timeout_ms, message, .. } = &self.0;
        let mut request = Request::post_json(url, ask::body(stage, ctx, messages)).timeout_ms(*timeout_ms);
        if let Some(secret) = secret {
            request = request.secret_header(secret_header, secret_prefix, secret);
        }
        let started = clock::monotonic_ms();
        let sent = http::send(&request);
        // Of a service that is away, too: its slowest answers are those that do not come.
        count("asked", 1);
        observe("ask_ms", clock::monotonic_ms().saturating_sub(started) as f64);
        let response = sent?;
        if !response.is_success() {
            return Err(Error::Unavailable(format!("the service answered with status {}", response.status)));
        }
        if response.truncated {
            return Err(Error::Other(
                "the service's answer is longer than the grant allows (`http.response_kib`)".into(),
            ));
        }
        Answer::parse(&response.body)?.verdict(messages, message)
    }
}

tidegate_plugin_sdk::export!(WebhookGuard: PromptGuard, OutputGuard);

#[cfg(test)]
mod tests;
