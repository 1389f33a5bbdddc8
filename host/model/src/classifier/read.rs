//! Labels from `config.json` and their rows from `score.weight`, checked against each other.

use super::{Classifier, Scoring};
use crate::error::ModelError;
use crate::json::Object;
use crate::weights::Weights;
use std::collections::BTreeSet;
use tidegate_device::reference::ops::to_f32;
use tidegate_device::{WeightSource, WeightSpec};

const ROWS: &str = "score.weight";
/// A plugin is given all of them for each text.
const MAX_LABELS: usize = 1024;
const MAX_LABEL_BYTES: usize = 256;

impl Classifier {
    /// Reads what the folder says of labels; `hidden` is how many numbers a vector has.
    pub(crate) fn open(object: &Object, hidden: usize, weights: &Weights) -> Result<Self, ModelError> {
        let num_labels = num_labels(hidden, weights)?;
        let labels = match labels(object)? {
            Some(labels) => labels,
            None => unnamed(object, num_labels)?,
        };
        if labels.len() != num_labels {
            let why = format!("has {} labels, but `{ROWS}` has rows for {num_labels}", labels.len());
            return Err(object.wrong("id2label", why));
        }
        let padding = object.int("pad_token_id")?.and_then(|id| u32::try_from(id).ok());
        Ok(Self { rows: rows(&labels, weights)?, scoring: scoring(object, num_labels)?, labels, padding })
    }
}

/// As many as there are rows.
fn num_labels(hidden: usize, weights: &Weights) -> Result<usize, ModelError> {
    let found = weights.tensor(ROWS).and_then(|view| view.shape.first().copied());
    // Where there is none this asks for one, and says so.
    let num_labels = found.unwrap_or(1);
    weights.check_one(&WeightSpec { name: ROWS.to_owned(), shape: vec![num_labels, hidden] })?;
    if !(1..=MAX_LABELS).contains(&num_labels) {
        return Err(weights.fault(ROWS, format!("has rows for {num_labels} labels; supported: 1 to {MAX_LABELS}")));
    }
    Ok(num_labels)
}

fn rows(labels: &[String], weights: &Weights) -> Result<Vec<f32>, ModelError> {
    let rows = weights.tensor(ROWS).map_or_else(Vec::new, to_f32);
    match rows.iter().position(|weight| !weight.is_finite()) {
        None => Ok(rows),
        Some(at) => {
            let label = &labels[at / (rows.len() / labels.len())];
            Err(weights.fault(ROWS, format!("has {} among the weights of label {label:?}", rows[at])))
        }
    }
}

/// What transformers calls labels that have no names. `num_labels` is written by hand only.
fn unnamed(object: &Object, num_labels: usize) -> Result<Vec<String>, ModelError> {
    match object.uint("num_labels", 1..=usize::MAX)?.filter(|said| *said != num_labels) {
        None => Ok((0..num_labels).map(|id| format!("LABEL_{id}")).collect()),
        Some(said) => Err(object.wrong("num_labels", format!("is {said}, but `{ROWS}` has rows for {num_labels}"))),
    }
}

/// The names of `id2label` in the order of their ids, which are all from 0 on; `None` where there are none.
fn labels(object: &Object) -> Result<Option<Vec<String>>, ModelError> {
    let Some(names) = object.object("id2label")? else { return Ok(None) };
    let mut by_id = Vec::new();
    for key in names.keys() {
        let id: usize = key.parse().map_err(|_| names.wrong(key, "is not the number of a label"))?;
        let name = names.required(key, names.text(key)?)?;
        if name.is_empty() || name.len() > MAX_LABEL_BYTES {
            return Err(names.wrong(key, format!("has {} bytes; a label has 1 to {MAX_LABEL_BYTES}", name.len())));
        }
        by_id.push((id, name.to_owned()));
    }
    by_id.sort_unstable();
    if let Some((wanted, (id, _))) = by_id.iter().enumerate().find(|(wanted, (id, _))| wanted != id) {
        return Err(object.wrong("id2label", format!("has a label {id} where {wanted} is due; ids go from 0 on")));
    }
    let mut seen = BTreeSet::new();
    if let Some((_, twice)) = by_id.iter().find(|(_, name)| !seen.insert(name)) {
        return Err(object.wrong("id2label", format!("names two labels {twice:?}; a plugin could not tell them apart")));
    }
    Ok(Some(by_id.into_iter().map(|(_, name)| name).collect()))
}

/// As `TextClassificationPipeline` chooses where nobody says `function_to_apply`.
fn scoring(object: &Object, num_labels: usize) -> Result<Scoring, ModelError> {
    let key = "problem_type";
    match (object.text(key)?, num_labels) {
        (Some("multi_label_classification"), _) | (None, 1) => Ok(Scoring::Sigmoid),
        (Some("single_label_classification"), 1) => {
            let why = "is single_label_classification, but there is one label, which would always be right; \
                say multi_label_classification, or nothing";
            Err(object.wrong(key, why))
        }
        (Some("single_label_classification") | None, _) => Ok(Scoring::Softmax),
        // Any number, where plugins are promised scores from 0 to 1: `regression`.
        (Some(other), _) => {
            let supported = "single_label_classification, multi_label_classification, or nothing, \
                if the model was trained so that its outputs are logits of labels";
            Err(object.unsupported(key, other, supported))
        }
    }
}
