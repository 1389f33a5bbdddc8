//! Labels of texts by one model, wherever it runs, for plugins (`ask.rs`). The own engine makes a vector of each text as it
//! does for models that are asked for vectors; what that says of labels is computed here.

use crate::context::RequestContext;
use crate::embed::{Bill, Reading, by_engine};
use crate::models::{EngineModel, Makes, Model, ModelBackend};
use std::convert;
use std::sync::Arc;
use tidegate_ledger::Tally;
use tidegate_model::Classifier;
use tidegate_types::{EmbedRequest, Fault, Reject, RejectKind};
use tidegate_upstream::Attempts;

/// The labels of one text with scores from 0 to 1, highest first.
pub type Labels = Vec<(String, f32)>;

/// The labels of each text, as the work of the request's caller. What that costs is counted in `tally`.
pub(crate) async fn labels(
    model: &Model,
    asked: &EmbedRequest,
    reading: Reading,
    cx: &RequestContext,
    (tally, attempts): (&Tally, &Attempts),
) -> Result<Vec<Labels>, Reject> {
    match &model.backend {
        ModelBackend::Engine(engine) => {
            let classifier = Arc::clone(classifier(model, engine)?);
            let made = by_engine(engine, &cx.caller, reading.prompts, convert::identity, tally).await?;
            // Of many texts and labels that is milliseconds.
            let all = move || made.vectors.iter().map(|vector| of_vector(&classifier, vector)).collect();
            let all: Option<Vec<Labels>> = tokio::task::spawn_blocking(all)
                .await
                .map_err(|error| Reject::internal(Fault::Engine, error.to_string()))?;
            all.ok_or_else(|| no_scores(model))
        }
        ModelBackend::Upstream(replicas) => {
            let mut bill = Bill { tally, attempts, num_tokens: reading.num_tokens };
            let (labels, counted) = replicas.classify(asked, &cx.sending(), attempts).await?;
            bill.num_tokens = counted.unwrap_or(reading.num_tokens);
            Ok(labels)
        }
    }
}

/// What makes labels of a model's vectors.
pub(crate) fn classifier<'a>(model: &Model, engine: &'a EngineModel) -> Result<&'a Arc<Classifier>, Reject> {
    match &engine.makes {
        Makes::Labels(classifier) => Ok(classifier),
        Makes::Text | Makes::Vectors { .. } => {
            let message = format!("model `{}` gives no labels; name one that does", model.name);
            Err(Reject::new(RejectKind::Invalid, Fault::Operator, message).code("unsupported_model"))
        }
    }
}

fn of_vector(classifier: &Classifier, vector: &[f32]) -> Option<Labels> {
    let scores = classifier.scores(vector)?;
    let mut labels: Labels = classifier.labels().iter().cloned().zip(scores).collect();
    labels.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    Some(labels)
}

fn no_scores(model: &Model) -> Reject {
    Reject::internal(Fault::Engine, format!("a vector of model `{}` gives no scores", model.name))
}
