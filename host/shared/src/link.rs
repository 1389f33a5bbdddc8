//! The way to the server that is shared. One connection carries everything of the path of a request, and another the logs,
//! whose events may be large: no limit is asked for behind them. A connection is there, or it is not, and nobody waits for
//! it: who finds it too slow or broken gives it up, and a task of its own makes a new one.

use crate::script::Script;
use crate::{Config, SharedError};
use metrics::{counter, gauge};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisResult, TlsCertificates,
};
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// For a connection to be made, which nobody waits for.
const CONNECTING: Duration = Duration::from_secs(2);

/// Between attempts to make one.
const PAUSE: Duration = Duration::from_millis(250);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carries {
    /// What requests wait for.
    Limits,
    /// What only readers of streams wait for.
    Logs,
}

pub(crate) struct Link {
    carries: Carries,
    client: Client,
    pub(crate) config: Config,
    /// Names this gateway, and this run of it.
    pub(crate) gateway: String,
    state: Mutex<State>,
    given_up: Notify,
}

#[derive(Default)]
struct State {
    /// With when it was made.
    connection: Option<(MultiplexedConnection, Instant)>,
    /// Connections before this one.
    before: u64,
}

/// A connection that answered when it was last asked.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) since: Instant,
    number: u64,
}

/// Takes a URL apart.
pub(crate) fn parse(url: &str) -> Result<ConnectionInfo, SharedError> {
    url.into_connection_info().map_err(unusable)
}

fn unusable(error: redis::RedisError) -> SharedError {
    SharedError::Url(error.to_string())
}

impl Link {
    pub(crate) fn new(config: Config) -> Result<Self, SharedError> {
        let info = parse(&config.url)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let mut settings = info.redis_settings().clone();
        if let Some(password) = &config.password {
            settings = settings.set_password(password);
        }
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let client = match config.authority.clone() {
            Some(pem) => Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(pem) }),
            None => Client::open(info),
        };
        let client = client.map_err(unusable)?;
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| SharedError::NoRandomness(error.to_string()))?;
        let gateway = format!("{:016x}", u64::from_le_bytes(bytes));
        gauge!("tidegate_shared_up").set(0.0);
        let (state, given_up) = (Mutex::default(), Notify::new());
        Ok(Self { carries: Carries::Limits, client, config, gateway, state, given_up })
    }

    /// A connection of the same gateway, beside this one.
    pub(crate) fn of_logs(&self) -> Self {
        let (client, config, gateway) = (self.client.clone(), self.config.clone(), self.gateway.clone());
        let (state, given_up) = (Mutex::default(), Notify::new());
        Self { carries: Carries::Logs, client, config, gateway, state, given_up }
    }

    /// A name for something shared. All are of one slot, so that a script may touch several.
    pub(crate) fn key(&self, what: &str, name: &str) -> String {
        format!("{{{}}}:{what}:{name}", self.config.prefix)
    }

    /// The connection, where there is one.
    pub(crate) fn line(&self) -> Option<Line> {
        let state = self.state.lock();
        let (connection, since) = state.connection.clone()?;
        Some(Line { connection, since, number: state.before })
    }

    /// What is asked over `line`, within the deadline. Whatever goes wrong, the connection is given up.
    pub(crate) async fn within<T>(&self, line: &Line, asking: impl Future<Output = RedisResult<T>>) -> Option<T> {
        self.wait(line, self.config.deadline, asking).await
    }

    /// The same for what no request waits for.
    pub(crate) async fn wait<T>(
        &self,
        line: &Line,
        patience: Duration,
        asking: impl Future<Output = RedisResult<T>>,
    ) -> Option<T> {
        match timeout(patience, asking).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => self.give_up(line, &error.to_string()),
            Err(_) => self.give_up(line, &format!("no answer in {} ms", patience.as_millis())),
        }
    }

    fn give_up<T>(&self, line: &Line, why: &str) -> Option<T> {
        let mut state = self.state.lock();
        if state.before == line.number && state.connection.take().is_some() {
            state.before += 1;
            drop(state);
            counter!("tidegate_shared_losses_total").increment(1);
            match self.carries {
                Carries::Limits => {
                    gauge!("tidegate_shared_up").set(0.0);
                    tracing::warn!(
                        "what gateways share is out of reach, and this one goes on alone, with 1/{} of the limits: {why}",
                        self.config.gateways
                    );
                }
                Carries::Logs => tracing::warn!("streams of other gateways are out of reach: {why}"),
            }
            self.given_up.notify_one();
        }
        None
    }

    /// Makes a connection that `prepare` has made ready within the deadline; tries until there is one.
    pub(crate) async fn connect(&self, prepare: &Pipeline) {
        let mut told = false;
        loop {
            match timeout(CONNECTING, self.attempt(prepare)).await {
                Ok(Ok(connection)) => {
                    self.state.lock().connection = Some((connection, Instant::now()));
                    let place = self.client.get_connection_info().addr();
                    match self.carries {
                        Carries::Limits => {
                            gauge!("tidegate_shared_up").set(1.0);
                            tracing::info!("limits are shared through {place}");
                        }
                        Carries::Logs => tracing::info!("streams are shared through {place}"),
                    }
                    return;
                }
                Ok(Err(error)) if !told => {
                    told = true;
                    match self.carries {
                        Carries::Limits => tracing::warn!("what gateways share is out of reach: {error}"),
                        Carries::Logs => tracing::warn!("streams of other gateways are out of reach: {error}"),
                    }
                }
                Ok(Err(_)) | Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What a new connection begins with: these scripts are known, and this gateway is there.
    pub(crate) fn prepare<'a>(&self, scripts: impl Iterator<Item = &'a Script>) -> Pipeline {
        let mut commands = redis::pipe();
        for script in scripts {
            commands.add_command(script.load()).ignore();
        }
        commands.add_command(self.lease()).ignore();
        commands
    }

    async fn attempt(&self, prepare: &Pipeline) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.dial().await?;
        prepare.exec_async(&mut connection).await?;
        // What takes longer than a request may wait is as good as away.
        let ping = timeout(self.config.deadline, redis::cmd("PING").exec_async(&mut connection)).await;
        ping.map_err(|_| redis::RedisError::from((redis::ErrorKind::Io, "it answers too late")))??;
        Ok(connection)
    }

    /// Says that this gateway is there, until the lease ends.
    pub(crate) fn lease(&self) -> Cmd {
        let mut command = redis::cmd("SET");
        let milliseconds = u64::try_from(self.config.lease.as_millis()).unwrap_or(u64::MAX);
        command.arg(self.key("gateway", &self.gateway)).arg(1).arg("PX").arg(milliseconds);
        command
    }

    /// Says that this gateway is there no longer.
    pub(crate) async fn leave(&self) {
        let Some(mut line) = self.line() else { return };
        let mut command = redis::cmd("DEL");
        command.arg(self.key("gateway", &self.gateway));
        self.within(&line.clone(), command.exec_async(&mut line.connection)).await;
    }

    /// A connection of one's own.
    pub(crate) async fn dial(&self) -> RedisResult<MultiplexedConnection> {
        let patient = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECTING)).set_response_timeout(None);
        self.client.get_multiplexed_async_connection_with_config(&patient).await
    }

    /// Until the connection is given up.
    pub(crate) async fn given_up(&self) {
        self.given_up.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_sent_at_once() {
        let config = Config {
            url: "redis://127.0.0.1:1".into(),
            password: None,
            authority: None,
            prefix: "t".into(),
            gateways: 1,
            deadline: Duration::from_millis(1),
            lease: Duration::from_secs(1),
        };
        let link = Link::new(config).unwrap();
        assert!([&link, &link.of_logs()].iter().all(|link| link.client.get_connection_info().tcp_settings().nodelay()));
    }
}
