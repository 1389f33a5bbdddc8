//! The models that this server answers for: its own engine's, and upstreams.

use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_engine::EngineHandle;
use tidegate_grammar::Grammars;
use tidegate_model::Classifier;
use tidegate_text::TextModel;
use tidegate_types::{Fault, Quota, Reject, RejectKind, Sampling, Scope};
use tidegate_upstream::Replicas;

/// A model by the name that callers use.
pub struct Model {
    /// As in `GET /v1/models`.
    pub name: String,
    /// Unix seconds of when it was loaded.
    pub created: u64,
    /// Longest prompt plus answer, in tokens; 0 where an upstream does not say.
    pub context_tokens: u32,
    /// Limits of all its callers together; a reload may change them.
    pub quota: ArcSwap<Quota>,
    /// Models by their names that are asked, in this order, where this one cannot begin an answer.
    pub fallbacks: Vec<String>,
    /// What answers.
    pub backend: ModelBackend,
}

impl Model {
    /// What exactly it is, where that is known before it answers.
    pub fn version(&self) -> Option<&str> {
        match &self.backend {
            ModelBackend::Engine(engine) => Some(&engine.fingerprint),
            ModelBackend::Upstream(_) => None,
        }
    }

    /// Whether it may be asked for an answer: what makes vectors or gives labels is not. Of an upstream's nobody here knows.
    pub fn answers(&self) -> bool {
        self.check_answers().is_ok()
    }

    /// Refuses to ask a model for an answer that has none.
    pub(crate) fn check_answers(&self) -> Result<(), Reject> {
        let what = match &self.backend {
            ModelBackend::Upstream(_) => return Ok(()),
            ModelBackend::Engine(engine) => match &engine.makes {
                Makes::Text => return Ok(()),
                Makes::Vectors { .. } => "makes vectors and no answers; ask it at POST /v1/embeddings",
                Makes::Labels(_) => "gives labels to plugins and no answers; name it in a grant of `models`",
            },
        };
        Err(Reject::invalid("model", format!("model `{}` {what}", self.name)).code("unsupported_model"))
    }
}

/// What answers for a model.
pub enum ModelBackend {
    /// The program's own engine.
    Engine(Box<EngineModel>),
    /// Other servers, all alike.
    Upstream(Replicas),
}

/// A model of the own engine.
pub struct EngineModel {
    /// Of its config and weights: another one answers otherwise.
    pub fingerprint: String,
    /// Where jobs go.
    pub handle: EngineHandle,
    /// Tokenizer and template.
    pub text: Arc<TextModel>,
    /// What its answers can be held to; absent for one that has none.
    pub grammars: Option<Arc<Grammars>>,
    /// Tokens that end an answer.
    pub stop_token_ids: Vec<u32>,
    /// What the model's `generation_config.json` asks for where the caller says nothing.
    pub defaults: Sampling,
    /// What comes of a text.
    pub makes: Makes,
}

/// What a model of the own engine is for.
pub enum Makes {
    /// More text.
    Text,
    /// A vector.
    Vectors {
        /// How many numbers it has.
        dimensions: u32,
    },
    /// Labels with scores, for plugins.
    Labels(Arc<Classifier>),
}

/// All models.
#[derive(Clone, Default)]
pub struct Models {
    by_name: BTreeMap<String, Arc<Model>>,
    /// As they were added: the config's order.
    in_order: Vec<Arc<Model>>,
}

impl Models {
    /// Adds a model; a second of the same name is refused.
    pub fn insert(&mut self, model: Model) -> Result<(), String> {
        let name = model.name.clone();
        if self.by_name.contains_key(&name) {
            return Err(format!("two models are named `{name}`"));
        }
        let model = Arc::new(model);
        self.by_name.insert(name, Arc::clone(&model));
        self.in_order.push(model);
        Ok(())
    }

    /// The models that may be asked for an answer, for callers of `scope`: those that `first` names, in its order, then the
    /// others in the order of the config.
    pub(crate) fn answering(&self, first: &[String], scope: &Scope) -> Vec<Arc<Model>> {
        let named = first.iter().filter_map(|name| self.by_name.get(name));
        let others = self.in_order.iter().filter(|model| !first.contains(&model.name));
        named.chain(others).filter(|model| model.answers() && scope.allows(&model.name)).cloned().collect()
    }

    /// All models in the order of the config.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.in_order.iter()
    }

    /// The model of that name, for callers of `scope`. One that they may not use is to them one that does not exist.
    pub fn allowed(&self, name: &str, scope: &Scope) -> Result<&Arc<Model>, Reject> {
        match self.by_name.get(name) {
            Some(model) if scope.allows(name) => Ok(model),
            _ => Err(self.unknown(name, scope)),
        }
    }

    /// The models that stand in for `model`, for callers of `scope`: those that they may name themselves.
    pub(crate) fn fallbacks<'a>(&'a self, model: &'a Model, scope: &'a Scope) -> impl Iterator<Item = &'a Arc<Model>> {
        model.fallbacks.iter().filter(|name| scope.allows(name)).filter_map(|name| self.by_name.get(name))
    }

    /// What callers of `scope` are told of a model that is not there for them.
    pub(crate) fn unknown(&self, name: &str, scope: &Scope) -> Reject {
        let known: Vec<&str> = self.by_name.keys().map(String::as_str).filter(|name| scope.allows(name)).collect();
        let message = format!("the model `{name}` does not exist; this server has: {}", known.join(", "));
        Reject::new(RejectKind::NotFound, Fault::Client, message).at("model").code("model_not_found")
    }

    /// The model of that name, for the server itself.
    pub fn get(&self, name: &str) -> Result<&Arc<Model>, Reject> {
        self.allowed(name, &Scope::default())
    }
}
