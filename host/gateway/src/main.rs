//! The `tidegate` program: read the command line and the config, assemble, say one line for each fact, serve
//! until told to stop, drain.

mod signals;

use anyhow::Context;
use clap::Parser;
use signals::{Hangup, Stops};
use std::env::VarError;
use std::error::Error;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use tidegate::cli::{Cli, Command, FileArgs, KeyArgs, KeyCommand, ServeArgs};
use tidegate::config::TracesConfig;
use tidegate::stdout::{is_unread, stdout};
use tidegate_trace::Traces;
use tokio::signal::unix::Signal;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::FromEnvError;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        None => serve(&cli.serve),
        Some(Command::Serve(args)) => serve(&args),
        Some(Command::Check(args)) => start_logging(None, CHECKED).and_then(|()| check(&args)),
        Some(Command::Audit(args)) => audit(&args),
        Some(Command::Chat(args)) => runtime().and_then(|runtime| runtime.block_on(tidegate::chat::run(args))),
        Some(Command::Key(args)) => key(args),
        Some(Command::Project(command)) => {
            runtime().and_then(|runtime| runtime.block_on(tidegate::remote::project(command, &mut stdout())))
        }
        Some(Command::Usage(args)) => {
            runtime().and_then(|runtime| runtime.block_on(tidegate::remote::usage(args, &mut stdout())))
        }
        Some(Command::Plugin(command)) => {
            start_logging(None, "warn").and_then(|()| tidegate::plugin::run(command, &mut stdout()))
        }
        Some(Command::EngineWorker(args)) => {
            start_logging(None, LOGGED).and_then(|()| tidegate::assemble::run_worker(args))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_unread(&error) => ExitCode::FAILURE,
        Err(error) => {
            say(&mut std::io::stderr(), &format!("tidegate: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let config = args.to_config()?;
    let runtime = runtime()?;
    let start = |traces: &TracesConfig| Traces::start(&traces.to_traces(&config.egress), runtime.handle().clone());
    let traces = config.traces.as_ref().map(start).transpose()?;
    start_logging(traces.as_ref(), LOGGED)?;
    tidegate::descriptors::raise(&config);
    let [settle, drain] = [config.server.settle_ms, config.server.drain_timeout_ms].map(Duration::from_millis);
    let hangup = Hangup::of(config.source.is_some());
    let collector =
        config.traces.as_ref().map(|traces| format!("traces    to {} as {}", traces.endpoint, traces.service));
    let served = runtime.block_on(async {
        // Large models take minutes, in which a config may well change.
        let requests = hangup.requests()?;
        // From the start on: the first process of a container is not ended by a signal that it does not listen for.
        let mut stops = Stops::listen(hangup)?;
        let running = tokio::select! {
            running = tidegate::start(config) => running?,
            () = stops.next() => return Ok(Stopped::Early),
        };
        for fact in collector.iter().chain(&running.facts) {
            say(&mut std::io::stdout(), fact);
        }
        run_until_stopped(&running, &mut stops, requests).await;
        let first = if settle.is_zero() { String::new() } else { format!("not ready; in {settle:?} ") };
        let rest = "no new requests; running answers end first (press Ctrl-C to cut them)";
        say(&mut std::io::stdout(), &format!("stopping  {first}{rest}"));
        Ok(tokio::select! {
            () = running.stop(drain) => Stopped::Drained,
            () = stops.next() => Stopped::AtOnce,
        })
    });
    let at_once = match served {
        Ok(Stopped::AtOnce) => Some("at once; running answers were cut"),
        Ok(Stopped::Early) => Some("before it was ready"),
        Ok(Stopped::Drained) | Err(_) => None,
    };
    if let Some(how) = at_once {
        say(&mut std::io::stdout(), &format!("stopped   {how}"));
        // Nobody who asks twice waits for work that blocks, or for a collector of spans.
        runtime.shutdown_background();
        return Ok(());
    }
    // The runtime sends what is left.
    if let Some(traces) = traces {
        traces.stop();
    }
    // What had to end has ended. What still blocks, such as a plugin that is being compiled, has nobody who waits for it.
    runtime.shutdown_timeout(REST);
    served.map(drop)
}

/// For work that blocks, after the server has stopped.
const REST: Duration = Duration::from_secs(2);

/// How a server ended.
enum Stopped {
    /// Its answers ended first, or had the time to.
    Drained,
    /// A second signal cut them.
    AtOnce,
    /// It was still starting.
    Early,
}

/// Fails where the books are wrong, for whoever runs it by a clock.
fn audit(args: &FileArgs) -> anyhow::Result<()> {
    let config = args.to_config()?;
    let audit = runtime()?.block_on(tidegate::audit::audit(&config))?;
    say(&mut std::io::stdout(), &audit.to_string());
    if audit.drift.is_empty() { Ok(()) } else { anyhow::bail!("the books are wrong in {} places", audit.drift.len()) }
}

fn check(args: &FileArgs) -> anyhow::Result<()> {
    for fact in tidegate::check_file(&args.file, args.overrides.to_overrides()?)? {
        say(&mut std::io::stdout(), &fact);
    }
    say(&mut std::io::stdout(), &format!("{} is good", args.file.display()));
    Ok(())
}

fn key(args: KeyArgs) -> anyhow::Result<()> {
    let name = match (args.command, args.name) {
        // A key for the config needs no server.
        (Some(KeyCommand::New(new)), _) if new.at.server.is_none() => new.name,
        (Some(command), _) => return runtime()?.block_on(tidegate::remote::key(command, &mut stdout())),
        (None, name) => name.context("name the key: `tidegate key NAME`")?,
    };
    let (key, entry) = tidegate::key::make(&name)?;
    say(
        &mut std::io::stdout(),
        &format!("The key, shown this once:\n\n    {key}\n\nIts entry in the config:\n\n{entry}"),
    );
    Ok(())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime does not start")
}

/// Serves. A stop is heard while the config is taken anew, too, and cuts that off.
async fn run_until_stopped(running: &tidegate::Running, stops: &mut Stops, requests: Option<Signal>) {
    tokio::select! {
        () = stops.next() => {}
        () = reload_when_asked(running, requests) => {}
    }
}

/// Takes the config file anew at each request, for ever. Those that come meanwhile are one more.
async fn reload_when_asked(running: &tidegate::Running, mut requests: Option<Signal>) {
    loop {
        signals::next(requests.as_mut()).await;
        match running.reload().await {
            Ok(facts) => facts.iter().for_each(|fact| say(&mut std::io::stdout(), fact)),
            Err(error) => say(&mut std::io::stdout(), &format!("not taken {error:#}; the old config goes on")),
        }
    }
}

/// What is logged without `RUST_LOG`: warnings of everybody, and what this program and its plugins (whose lines have the
/// target `plugin`) have to say.
const LOGGED: &str = "warn,tidegate=info,plugin=info";

/// What a check logs: why a plugin's code failed is in its own lines. What a start logs of a stage the check says itself.
const CHECKED: &str = "warn,tidegate::assemble=off";

/// To standard error, at the level of `RUST_LOG`, else at this one. Spans to a collector, where there is one.
fn start_logging(traces: Option<&Traces>, level: &str) -> anyhow::Result<()> {
    let filter = filter(level)?;
    let registry = tracing_subscriber::registry();
    let started = match traces {
        // One filter for all is the cheaper one.
        None => registry.with(filter).with(lines()).try_init(),
        Some(traces) => registry.with(lines().with_filter(filter)).with(traces.layer()).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logging does not start: {error}"))
}

/// By `RUST_LOG`; by `level` where that is not set. One that cannot be read would leave out what its writer wants to see.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let is_unset = |error: &FromEnvError| {
        error.source().and_then(|why| why.downcast_ref::<VarError>()).is_some_and(|why| *why == VarError::NotPresent)
    };
    match EnvFilter::try_from_default_env() {
        Err(error) if is_unset(&error) => Ok(EnvFilter::new(level)),
        Err(error) => {
            anyhow::bail!("the variable RUST_LOG cannot be read: {error}; write it as `{LOGGED}`, or leave it out")
        }
        Ok(filter) => Ok(filter),
    }
}

fn lines<S>() -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // Escape codes are for eyes; in a file they are noise.
    layer.with_ansi(std::io::stderr().is_terminal())
}

/// A closed pipe is no reason to panic.
fn say(out: &mut dyn Write, line: &str) {
    let _ = writeln!(out, "{line}");
}
