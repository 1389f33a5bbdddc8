//! What cannot work together: each part of a config is looked at by itself, so that all of it is told at once (`wrong.rs`).

use super::wrong::{Wrong, entry};
use super::{Config, SharedConfig, TracesConfig};
use anyhow::{Context, bail, ensure};

/// What limits of tokens are checked against.
const RESERVED: &str = "limits.reserve_output_tokens";
/// Where the names are that others name.
const MODELS: &str = "models";
const STAGES: &str = "pipeline.stage";

impl Config {
    /// Refuses what cannot work together.
    pub fn check(&self) -> anyhow::Result<()> {
        let mut wrong = Wrong::default();
        self.look(&mut wrong);
        wrong.none()
    }

    /// The same, where more may be wrong than that.
    pub(super) fn look(&self, wrong: &mut Wrong) {
        wrong.look_at_each("server", &[], || self.server.check());
        wrong.look("compute", &[], || self.compute.check());
        wrong.look("plugins", &["store"], || self.plugins.check(self.store.is_some()));
        self.look_at_models(wrong);
        self.look_at_stages(wrong);
        self.look_at_tenants(wrong);
        self.look_at_keys(wrong);
        self.look_at_auth(wrong);
        wrong.look("server.listen", &["keys", "auth.issuer", "auth.certificate"], || self.check_open());
        wrong.look("engine", &[], || Ok(self.engine.check()?));
        wrong.look("store", &[MODELS], || self.store.as_ref().map_or(Ok(()), |store| store.check(&self.model_names())));
        wrong.look("shared", &[], || self.shared.as_ref().map_or(Ok(()), SharedConfig::check));
        wrong.look("traces", &[], || self.traces.as_ref().map_or(Ok(()), TracesConfig::check));
        self.look_at_money(wrong);
    }

    fn look_at_models(&self, wrong: &mut Wrong) {
        for (i, model) in self.models.iter().enumerate() {
            let place = entry("models", i);
            wrong.look(&place, &[RESERVED], || model.check(&self.limits));
            wrong.look(&place, &[MODELS], || model.check_fallbacks(&self.model_names()));
            wrong.look(&place, &[], || {
                let is_taken = self.models.iter().take(i).any(|other| other.name == model.name);
                ensure!(!is_taken, "two models are named `{}`", model.name);
                Ok(())
            });
        }
    }

    fn look_at_stages(&self, wrong: &mut Wrong) {
        let Some(pipeline) = &self.pipeline else { return };
        wrong.look("pipeline.default", &[MODELS], || pipeline.check(&self.model_names()));
        for (i, stage) in pipeline.stage.iter().enumerate() {
            let place = entry("pipeline.stage", i);
            wrong.look_at_each(&place, &[], || stage.check());
            wrong.look(&place, &["plugins"], || self.plugins.check_stage(stage));
        }
    }

    fn look_at_tenants(&self, wrong: &mut Wrong) {
        for (name, tenant) in &self.tenants {
            let place = format!("tenants.{name}");
            wrong.look_at_each(&place, &[RESERVED], || tenant.check(name, &self.limits));
            for (project, of) in &tenant.projects {
                let place = format!("{place}.projects.{project}");
                let whose = || format!("tenant `{name}`: project `{project}`");
                wrong.look(&place, &[RESERVED, MODELS, STAGES], || of.check(self).with_context(whose));
            }
        }
        wrong.look_at_each("tenants", &["keys", "auth.issuer", "auth.certificate"], || self.check_names());
    }

    fn look_at_keys(&self, wrong: &mut Wrong) {
        for (i, key) in self.keys.iter().enumerate() {
            let (place, project) = (entry("keys", i), project(Some(key.tenant()), key.project.as_deref()));
            wrong.look_at_each(&place, &[RESERVED, MODELS, STAGES, &project], || key.check(self));
            wrong.look(&place, &[], || {
                let is_taken = self.keys.iter().take(i).any(|other| other.name == key.name);
                ensure!(!is_taken, "two keys are named `{}`", key.name);
                Ok(())
            });
        }
    }

    fn look_at_auth(&self, wrong: &mut Wrong) {
        let auth = &self.auth;
        for (i, issuer) in auth.issuer.iter().enumerate() {
            let (place, name) = (entry("auth.issuer", i), &issuer.name);
            let project = project(issuer.tenant.as_deref(), issuer.project.as_deref());
            let check = || issuer.check(self).with_context(|| format!("auth.issuer `{name}`"));
            wrong.look(&place, &[RESERVED, MODELS, STAGES, &project], check);
            wrong.look(&place, &[], || auth.check_issuer_is_one(i));
        }
        for (i, known) in auth.certificate.iter().enumerate() {
            let (place, name) = (entry("auth.certificate", i), &known.name);
            let project = project(Some(known.tenant()), known.project.as_deref());
            let check = || known.check(self).with_context(|| format!("auth.certificate `{name}`"));
            wrong.look(&place, &[RESERVED, MODELS, STAGES, &project, "server.tls.client_ca"], check);
            wrong.look(&place, &["auth.issuer"], || auth.check_certificate_is_one(i));
        }
        wrong.look("auth.login", &["auth.issuer", "store"], || {
            auth.login.as_ref().map_or(Ok(()), |login| login.check(self).context("auth.login"))
        });
    }

    fn look_at_money(&self, wrong: &mut Wrong) {
        // Of several stages, so that it keeps nobody from looking at one of them.
        wrong.look("prices", &[STAGES], || self.call_prices().map(drop));
        for (i, model) in self.models.iter().enumerate() {
            wrong.look(&entry("models", i), &[], || {
                model.price.map_or(Ok(()), |price| price.to_price(&model.name).map(drop))
            });
        }
        for (place, whose, budget) in self.budgets() {
            wrong.look(&place, &["store"], || self.check_budget(budget, &whose));
        }
    }

    fn check_open(&self) -> anyhow::Result<()> {
        if self.is_open() && !self.server.listen.ip().is_loopback() {
            bail!(
                "server.listen is {}, which other machines reach, but there are no [[keys]] and no [auth]; \
                 listen on 127.0.0.1, or add a key (`tidegate key NAME` makes one)",
                self.server.listen
            );
        }
        Ok(())
    }
}

/// The place of the project that a credential names, if it names one.
fn project(tenant: Option<&str>, project: Option<&str>) -> String {
    format!("tenants.{}.projects.{}", tenant.unwrap_or_default(), project.unwrap_or_default())
}
