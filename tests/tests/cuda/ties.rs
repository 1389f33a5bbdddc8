//! Answers token by token: where CUDA's leaves the reference's, the log-probabilities of both have to show that the two tokens
//! were as good as equal there.

use super::{Ask, body};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::fmt;
use tidegate_tests::Gateway;

/// How far a token's log-probability may be from the reference's, as long as both have said the same. Measured: 0.045.
pub const APART: f64 = 0.1;

/// How far the second best may be below the best where the other draws it. Logits are up to 0.0131 from f32, root mean square
/// (`docs/gpu.md`), so margins differ by 0.0185; this is three times that. Measured: 0.034.
pub const TIE: f64 = 0.056;

/// One token of an answer. Names are texts, and bytes where a token is no text; a name is one token's.
#[derive(Debug, PartialEq)]
pub struct Token {
    name: String,
    logprob: f64,
    /// The two best.
    top: [(String, f64); 2],
}

/// How an answer of CUDA compares with the reference's.
#[derive(Debug)]
pub struct Comparison {
    /// The largest difference of a log-probability, of those before the tie.
    pub apart: f64,
    pub tie: Option<Tie>,
}

/// CUDA has drawn the reference's second best, and the reference CUDA's.
#[derive(Debug)]
pub struct Tie {
    at: usize,
    names: [String; 2],
    margins: [f64; 2],
}

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([reference, cuda], [on_reference, on_cuda]) = (&self.names, self.margins);
        write!(
            f,
            "token {}: {reference:?} is {on_reference:.4} above {cuda:?} for the reference, and {on_cuda:.4} below it on CUDA",
            self.at
        )
    }
}

/// All at once, with what was likely at each token.
pub async fn answers(gateway: &Gateway, backend: &str, asks: &[Ask]) -> Vec<Vec<Token>> {
    let body = |ask: &Ask| {
        let mut body = body(ask, backend);
        body["logprobs"] = json!(2);
        body
    };
    let bodies: Vec<Value> = asks.iter().map(body).collect();
    let all = bodies.iter().map(|body| gateway.post("/v1/completions", body));
    join_all(all).await.iter().map(|answer| tokens(&answer.json()["choices"][0]["logprobs"])).collect()
}

fn tokens(logprobs: &Value) -> Vec<Token> {
    let list = |name: &str| logprobs[name].as_array().unwrap_or_else(|| panic!("no {name} in {logprobs}")).iter();
    let lists = list("tokens").zip(list("token_logprobs")).zip(list("top_logprobs"));
    let token = |((name, logprob), top): ((&Value, &Value), &Value)| {
        let mut top = top.as_object().unwrap().iter().map(|(name, logprob)| (name.clone(), logprob.as_f64().unwrap()));
        let (name, logprob) = (name.as_str().unwrap().to_owned(), logprob.as_f64().unwrap());
        Token { name, logprob, top: [top.next().unwrap(), top.next().unwrap()] }
    };
    lists.map(token).collect()
}

/// Fails where anything but a tie sets them apart.
pub fn compare(ask: &Ask, reference: &[Token], cuda: &[Token]) -> Comparison {
    let mut apart = 0f64;
    for (at, (reference, cuda)) in reference.iter().zip(cuda).enumerate() {
        if reference.name != cuda.name {
            return Comparison { apart, tie: Some(tie(ask, at, reference, cuda)) };
        }
        apart = apart.max((reference.logprob - cuda.logprob).abs());
        assert!(apart <= APART, "{ask:?}: token {at} is {cuda:?}, of the reference {reference:?}");
    }
    assert_eq!(reference.len(), cuda.len(), "{ask:?}: one answer is the beginning of the other");
    Comparison { apart, tie: None }
}

fn tie(ask: &Ask, at: usize, reference: &Token, cuda: &Token) -> Tie {
    let second = |of: &Token, name: &str| of.top[0].0 == of.name && of.top[1].0 == name;
    let margins = [reference, cuda].map(|of| of.top[0].1 - of.top[1].1);
    let close = margins.iter().all(|margin| *margin <= TIE);
    assert!(
        second(reference, &cuda.name) && second(cuda, &reference.name) && close,
        "{ask:?}: token {at} is {cuda:?}, of the reference {reference:?}"
    );
    Tie { at, names: [reference.name.clone(), cuda.name.clone()], margins }
}
