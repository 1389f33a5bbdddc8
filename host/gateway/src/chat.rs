//! `tidegate chat`: a conversation in the terminal with any OpenAI server, streaming. What the model reasons is shown, and is
//! no part of the conversation that goes on.

mod shown;

use crate::cli::ChatArgs;
use crate::remote::{self, SERVER};
use crate::stdout::stdout;
use crate::terminal;
use anyhow::{anyhow, bail, ensure};
use shown::{Shown, Style};
use std::io::{BufRead, IsTerminal, Write};
use tidegate_egress::CertificateDer;
use tidegate_types::{Chat, DeltaKind, Message, Reject, RejectKind, RequestId, Role, default_model};
use tidegate_upstream::{ApiKey, Reader, Upstream, UpstreamConfig, UpstreamEvent};

/// Reads lines until the end of input; each that says something is a message, and each answer streams to standard output.
pub async fn run(args: ChatArgs) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = crate::config::variable(&args.api_key_env).ok();
    let url = remote::server(args.server.as_deref());
    let server = Server { roots: remote::authorities(&url, args.ca.as_deref())?, url, key };
    let model = match &args.model {
        Some(model) => model.clone(),
        None => choose_model(&server, &args.api_key_env).await?,
    };
    let (upstream, server) = (server.of_model(&model)?, server.url);
    let (mut messages, mut num_failed) = (Vec::<Message>::new(), 0);
    messages.extend(args.system.map(|text| Message::text("m0", Role::System, text)));
    let mut out = stdout();
    let style = style(std::io::stdout().is_terminal());
    writeln!(out, "{} at {server}; Ctrl-D ends.", terminal::shown(&model))?;
    while let Some(line) = read_line(&mut out)? {
        messages.push(Message::text(format!("m{}", messages.len()), Role::User, line));
        match answer(&upstream, &model, &messages, Shown::new(&mut out, style)).await {
            // Not kept either: some servers refuse a conversation in which nothing is answered.
            Ok(text) if text.is_empty() => drop(messages.pop()),
            Ok(text) => messages.push(Message::text(format!("m{}", messages.len()), Role::Assistant, text)),
            Err(reject) => {
                messages.pop();
                num_failed += 1;
                writeln!(out, "! {}", explain(&reject, &server, &args.api_key_env))?;
            }
        }
    }
    // Whoever reads along has seen it; a script sees the status.
    ensure!(num_failed == 0 || std::io::stdin().is_terminal(), "{num_failed} questions were not answered");
    Ok(())
}

/// Who is asked, and how.
struct Server {
    url: String,
    key: Option<String>,
    /// Who signs its certificate, beside the public authorities.
    roots: Vec<CertificateDer<'static>>,
}

impl Server {
    fn of_model(&self, model: &str) -> anyhow::Result<Upstream> {
        let mut config = UpstreamConfig::new("chat", format!("{}/v1", self.url), model);
        config.api_key = self.key.as_deref().map(ApiKey::new);
        config.reader = Reader::Chooser;
        config.connector.extra_roots.clone_from(&self.roots);
        Ok(Upstream::new(config)?)
    }
}

async fn choose_model(server: &Server, key_env: &str) -> anyhow::Result<String> {
    let (listed, server) = (server.of_model("")?.models().await, &server.url);
    let listed = listed.map_err(|reject| anyhow!("{}", explain(&reject, server, key_env)))?;
    if let Some(model) = default_model(listed.iter().map(|model| (&*model.id, model.chats()))) {
        return Ok(model.to_owned());
    }
    let ids: Vec<&str> = listed.iter().map(|model| &*model.id).collect();
    let ids = if ids.is_empty() { "none".to_owned() } else { terminal::shown(&ids.join(", ")) };
    bail!("the server at {server} lists no model that answers chats; it lists: {ids}")
}

/// What went wrong, and what whoever chats can do about it.
fn explain(reject: &Reject, server: &str, key_env: &str) -> String {
    let said = terminal::shown_lines(&reject.message);
    match reject.kind {
        RejectKind::Unauthenticated | RejectKind::Forbidden => {
            let held =
                if crate::config::variable(key_env).is_ok() { "holds the key that was sent" } else { "is not set" };
            format!("{said}; the environment variable {key_env} is for the server's API key, and {held}")
        }
        _ if reject.code.as_deref() == Some("upstream_unreachable") => {
            let trust = remote::no_trust(server);
            format!(
                "no server answers at {server}; `tidegate serve` starts one, --server or {SERVER} names another{trust}"
            )
        }
        _ => said,
    }
}

/// The next line that says something. An empty one ends nothing: of a text that is pasted, what stands behind it would go to
/// the shell.
fn read_line(out: &mut impl Write) -> anyhow::Result<Option<String>> {
    loop {
        write!(out, "> ")?;
        out.flush()?;
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim();
        if !line.is_empty() {
            return Ok(Some(line.to_owned()));
        }
    }
}

fn style(is_terminal: bool) -> Style {
    let [no_color, term] = ["NO_COLOR", "TERM"].map(|name| crate::config::variable(name).ok());
    Style::of(is_terminal, no_color.as_deref(), term.as_deref())
}

/// The text of the answer, without what was reasoned before it.
async fn answer(
    upstream: &Upstream,
    model: &str,
    messages: &[Message],
    mut shown: Shown<'_, impl Write>,
) -> Result<String, Reject> {
    let mut stream = upstream.generate(&request(model, messages), &RequestId::new("chat"), 0).await?;
    let (mut text, mut finish) = (String::new(), None);
    while let Some(event) = stream.next().await {
        let event = match event {
            Ok(event) => event,
            Err(reject) => {
                shown.cut();
                return Err(reject);
            }
        };
        let UpstreamEvent::Delta(delta) = event else { continue };
        match delta.kind {
            DeltaKind::Reasoning(piece) => shown.reason(&piece),
            DeltaKind::Text { text: piece, .. } | DeltaKind::Refusal(piece) => {
                shown.say(&piece);
                text.push_str(&piece);
            }
            DeltaKind::ToolCall { .. } => {}
            DeltaKind::Finish(reason) => finish = Some(reason),
        }
    }
    shown.end(finish);
    Ok(text)
}

fn request(model: &str, messages: &[Message]) -> Chat {
    Chat { stream: true, ..Chat::new(model, messages.to_vec()) }
}
