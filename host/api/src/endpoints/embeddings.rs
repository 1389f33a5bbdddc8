//! `POST /v1/embeddings`: vectors of texts.

use crate::backend::Embedded;
use crate::body::Response;
use crate::exchange::{Exchange, json};
use crate::rate_headers;
use bytes::Bytes;
use tidegate_types::{Embeddings, Fault, Reject};
use tidegate_wire::{Encoding, embeddings_body, parse_embeddings};

/// Numbers that are written between two events of a connection's other requests; more take milliseconds.
const FEW_NUMBERS: usize = 64 << 10;

pub(crate) async fn create(mut exchange: Exchange) -> Result<Response, Reject> {
    let (asked, encoding) = exchange.read(parse_embeddings).await?;
    let context = exchange.context();
    let retention = context.retention;
    let (Exchange { api, answers, cutting, .. }, aborted) = (exchange, context.aborted.clone());
    let most = encoding.most_numbers(api.limits.max_answer_bytes);
    let Embedded { model, made, allowances, held } = tokio::select! {
        made = answers.embed(asked, most, context) => made?,
        reject = aborted.by_stopping(&cutting) => return Err(reject),
    };
    let mut response = json(written(model, made, encoding).await?);
    rate_headers::allowances(response.headers_mut(), &allowances);
    response.body_mut().retention = Some(retention);
    response.body_mut().held = Some(held);
    Ok(response)
}

async fn written(model: String, made: Embeddings, encoding: Encoding) -> Result<Bytes, Reject> {
    if made.vectors.iter().map(Vec::len).sum::<usize>() <= FEW_NUMBERS {
        return Ok(embeddings_body(&model, made, encoding));
    }
    let writing = tokio::task::spawn_blocking(move || embeddings_body(&model, made, encoding));
    writing.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))
}
