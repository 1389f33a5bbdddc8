//! Tool calls arrive in pieces and leave whole. Servers differ in what a piece says: the id only on the first
//! piece, on each, a new one on each, or never; no `index`, or index 0 for each of several calls; a whole call in one
//! piece.

use crate::client::WireError;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tidegate_types::ToolCall;

/// A model that starts more calls than this in one answer has lost its way.
const MAX_CALLS: usize = 128;

/// A piece of a call.
#[derive(Deserialize)]
pub(super) struct CallPiece {
    index: Option<u32>,
    id: Option<String>,
    function: Option<FunctionPiece>,
}

#[derive(Deserialize)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<String>,
}

impl CallPiece {
    /// Of what it says.
    pub(super) fn bytes(&self) -> usize {
        let said = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let function = self.function.as_ref().map_or(0, |function| said(&function.name) + said(&function.arguments));
        said(&self.id) + function
    }

    fn is_named(&self) -> bool {
        let name = self.function.as_ref().and_then(|function| function.name.as_deref());
        name.is_some_and(|name| !name.is_empty())
    }

    fn has_arguments(&self) -> bool {
        let arguments = self.function.as_ref().and_then(|function| function.arguments.as_deref());
        arguments.is_some_and(|arguments| !arguments.is_empty())
    }
}

/// The calls of one choice so far, in the order they began.
#[derive(Default)]
pub(super) struct Calls {
    calls: Vec<Partial>,
    bytes: usize,
}

struct Partial {
    index: Option<u32>,
    id: String,
    name: String,
    arguments: String,
}

impl Partial {
    /// Whether its arguments are a JSON object, to which nothing can be added.
    fn is_whole(&self) -> bool {
        self.arguments.trim_end().ends_with('}') && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Of all pieces so far.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, piece: CallPiece) -> Result<(), WireError> {
        let at = self.find(&piece);
        self.add_at(at, piece)
    }

    /// Adds a call of an answer that came whole: each entry is one, whatever ids and indices say.
    pub(super) fn add_whole(&mut self, call: CallPiece) -> Result<(), WireError> {
        self.add_at(None, call)
    }

    /// Adds a piece to the call that is there, or as one that begins.
    fn add_at(&mut self, at: Option<usize>, piece: CallPiece) -> Result<(), WireError> {
        self.bytes += piece.bytes();
        let at = match at {
            Some(at) => at,
            None if self.calls.len() == MAX_CALLS => {
                return Err(WireError::Malformed(format!("more than {MAX_CALLS} tool calls in one answer")));
            }
            None => {
                let id = piece.id.unwrap_or_default();
                let call = Partial { index: piece.index, id, name: String::new(), arguments: String::new() };
                self.calls.push(call);
                self.calls.len() - 1
            }
        };
        if let (Some(call), Some(function)) = (self.calls.get_mut(at), piece.function) {
            let name = function.name.unwrap_or_default();
            if call.name != name {
                call.name.push_str(&name);
            }
            call.arguments.push_str(function.arguments.as_deref().unwrap_or_default());
        }
        Ok(())
    }

    /// The call that a piece continues. An id says most: the same id is the same call, another id another call even
    /// under the same index, if it says what is called: else the server gives each piece an id. Without an id the index
    /// decides, without both the last call goes on; but a piece that says what is called begins a call where the one that it
    /// would continue is whole, or of another index.
    fn find(&self, piece: &CallPiece) -> Option<usize> {
        let of_index = |index: u32| self.calls.iter().rposition(|call| call.index == Some(index));
        let goes_on = |at: &usize| !piece.is_named() || !self.calls[*at].is_whole();
        match (piece.id.as_deref().filter(|id| !id.is_empty()), piece.index) {
            (Some(id), index) => {
                let known = self.of_id(id, piece);
                known.or_else(|| index.filter(|_| !piece.is_named()).and_then(of_index))
            }
            (None, Some(index)) => of_index(index).filter(goes_on),
            (None, None) => self.calls.len().checked_sub(1).filter(goes_on),
        }
    }

    /// The call of this id that a piece continues; some servers give several calls one id.
    fn of_id(&self, id: &str, piece: &CallPiece) -> Option<usize> {
        let is_elsewhere =
            |call: &Partial| matches!((call.index, piece.index), (Some(known), Some(said)) if known != said);
        let find = |is: &dyn Fn(&Partial) -> bool| self.calls.iter().rposition(|call| call.id == id && is(call));
        let here = find(&|call| !is_elsewhere(call));
        match piece.is_named() {
            true => here.filter(|at| !piece.has_arguments() || !self.calls[*at].is_whole()),
            false => here.or_else(|| find(&|_| true)),
        }
    }

    /// The whole calls. A call without an id gets one from `new_id`; one without arguments gets `{}`, which is
    /// what a function without parameters is called with. One that would not be taken back is not handed out.
    pub(super) fn finish(self, new_id: fn() -> String) -> Result<Vec<ToolCall>, WireError> {
        let whole = |(i, mut call): (usize, Partial)| {
            if call.name.is_empty() {
                return Err(WireError::Malformed(format!("tool call {i} has no name")));
            }
            check_length(call.id.len(), ToolCall::MAX_ID_BYTES, "an id")?;
            check_length(call.name.len(), ToolCall::MAX_NAME_BYTES, "a name")?;
            if call.id.is_empty() {
                call.id = new_id();
            }
            if call.arguments.trim().is_empty() {
                call.arguments = "{}".into();
            }
            Ok(ToolCall { id: call.id, name: call.name, arguments: call.arguments })
        };
        self.calls.into_iter().enumerate().map(whole).collect()
    }
}

fn check_length(bytes: usize, most: usize, what: &str) -> Result<(), WireError> {
    match bytes <= most {
        true => Ok(()),
        false => Err(WireError::Malformed(format!("a tool call has {what} of {bytes} bytes; the most is {most}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &str, expected: &[(&str, &str, &str)]) {
        let pieces: Vec<CallPiece> = serde_json::from_str(pieces).unwrap();
        let mut calls = Calls::default();
        pieces.into_iter().for_each(|piece| calls.add(piece).unwrap());
        let calls = calls.finish(|| "new".into()).unwrap();
        let got: Vec<_> = calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn the_id_comes_on_the_first_piece_only() {
        check(
            r#"[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}},
                {"index":0,"function":{"arguments":"{\"x\""}},{"index":0,"function":{"arguments":":1}"}}]"#,
            &[("a", "f", r#"{"x":1}"#)],
        );
    }

    #[test]
    fn a_whole_call_in_one_piece() {
        check(r#"[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]"#, &[("a", "f", "{}")]);
    }

    #[test]
    fn parallel_calls_interleave() {
        check(
            r#"[{"index":0,"id":"a","function":{"name":"f","arguments":""}},
                {"index":1,"id":"b","function":{"name":"g"}},
                {"index":0,"function":{"arguments":"[1]"}},{"index":1,"function":{"arguments":"[2]"}}]"#,
            &[("a", "f", "[1]"), ("b", "g", "[2]")],
        );
    }

    #[test]
    fn two_ids_under_one_index_are_two_calls() {
        check(
            r#"[{"index":0,"id":"a","function":{"name":"f","arguments":"1"}},
                {"index":0,"id":"b","function":{"name":"g","arguments":"2"}},
                {"index":0,"function":{"arguments":"3"}}]"#,
            &[("a", "f", "1"), ("b", "g", "23")],
        );
    }

    #[test]
    fn id_and_name_on_every_piece_are_one_call() {
        check(
            r#"[{"index":0,"id":"a","function":{"name":"f","arguments":"1"}},
                {"index":0,"id":"a","function":{"name":"f","arguments":"2"}}]"#,
            &[("a", "f", "12")],
        );
    }

    #[test]
    fn a_new_id_on_every_piece_is_one_call() {
        check(
            r#"[{"index":0,"id":"a","function":{"name":"f","arguments":""}},
                {"index":0,"id":"b","function":{"arguments":"{\"x\""}},
                {"index":1,"id":"c","function":{"name":"g"}},
                {"index":0,"id":"d","function":{"name":"","arguments":":1}"}},
                {"index":1,"id":"e","function":{"name":null,"arguments":"[2]"}}]"#,
            &[("a", "f", r#"{"x":1}"#), ("c", "g", "[2]")],
        );
    }

    #[test]
    fn missing_ids_indices_and_arguments_are_filled() {
        check(
            r#"[{"index":0,"function":{"name":"f"}},{"index":1,"id":"","function":{"name":"g","arguments":null}}]"#,
            &[("new", "f", "{}"), ("new", "g", "{}")],
        );
        check(r#"[{"function":{"name":"f"}},{"function":{"arguments":"1"}}]"#, &[("new", "f", "1")]);
    }

    #[test]
    fn calls_that_have_no_ids_are_told_apart_once_each_is_whole() {
        let calls = r#"[{"function":{"name":"f","arguments":"{\"x\":1}"}},{"function":{"name":"f","arguments":"{\"x\""}},
            {"function":{"arguments":":2}"}},{"id":"","function":{"name":"g","arguments":"{}"}}]"#;
        let expected = [("new", "f", r#"{"x":1}"#), ("new", "f", r#"{"x":2}"#), ("new", "g", "{}")];
        check(calls, &expected);
        check(&calls.replace(r#"{"function"#, r#"{"index":0,"function"#), &expected);
        check(
            r#"[{"index":0,"function":{"name":"f","arguments":"{\"x\""}},{"index":0,"function":{"name":"f","arguments":":1}"}}]"#,
            &[("new", "f", r#"{"x":1}"#)],
        );
    }

    #[test]
    fn whole_calls_that_share_an_id_are_told_apart() {
        let calls = r#"[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}},
            {"index":1,"id":"a","function":{"name":"f","arguments":"{\"x\""}},{"index":1,"id":"a","function":{"arguments":":2}"}}]"#;
        let expected = [("a", "f", r#"{"x":1}"#), ("a", "f", r#"{"x":2}"#)];
        check(calls, &expected);
        check(&calls.replace(r#""index":1"#, r#""index":0"#), &expected);
        check(&calls.replace(r#""index":0,"#, "").replace(r#""index":1,"#, ""), &expected);
        // The id and the name once more, behind all that there is to say.
        check(
            r#"[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},
                {"index":0,"id":"a","function":{"name":"f","arguments":""}}]"#,
            &[("a", "f", "{}")],
        );
        // Pieces that are counted.
        check(
            r#"[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}},
                {"index":1,"id":"a","function":{"arguments":":1}"}}]"#,
            &[("a", "f", r#"{"x":1}"#)],
        );
    }

    #[test]
    fn a_call_without_a_name_and_a_flood_of_calls_are_refused() {
        let mut calls = Calls::default();
        let piece = |i: u32| CallPiece { index: Some(i), id: None, function: None };
        (0..128).for_each(|i| calls.add(piece(i)).unwrap());
        assert!(calls.add(piece(128)).is_err());
        assert!(calls.finish(String::new).is_err());
    }

    #[test]
    fn a_call_is_handed_out_if_it_is_taken_back() {
        let finish = |id: usize, name: usize| {
            let function = FunctionPiece { name: Some("n".repeat(name)), arguments: None };
            let mut calls = Calls::default();
            calls.add(CallPiece { index: Some(0), id: Some("i".repeat(id)), function: Some(function) }).unwrap();
            calls.finish(String::new).map(|calls| (calls[0].id.len(), calls[0].name.len()))
        };
        let (id, name) = (ToolCall::MAX_ID_BYTES, ToolCall::MAX_NAME_BYTES);
        assert_eq!(finish(id, name).unwrap(), (id, name));
        assert!(finish(id + 1, name).unwrap_err().to_string().contains("an id of 65537 bytes; the most is 65536"));
        assert!(finish(id, name + 1).unwrap_err().to_string().contains("a name of 257 bytes; the most is 256"));
    }
}
