//! The JSON schemas of what this crate reads and writes, for the document that describes the API. They say more than a
//! reader needs who trusts the server: every answer of the end-to-end tests is checked against them, and a member that is
//! not in its schema fails there. Requests are checked by the parsers, which give the reasons; a schema only describes.

use serde_json::{Map, Value};

/// Each an object of schemas by name, which name each other as `#/components/schemas/NAME`.
const FILES: [&str; 8] = [
    include_str!("../schemas/common.json"),
    include_str!("../schemas/chat.json"),
    include_str!("../schemas/embeddings.json"),
    include_str!("../schemas/items.json"),
    include_str!("../schemas/report.json"),
    include_str!("../schemas/responses.json"),
    include_str!("../schemas/conversations.json"),
    include_str!("../schemas/usage.json"),
];

/// All schemas, by name. An error says that a file of this crate is no JSON, which a test rules out.
pub fn schemas() -> Result<Map<String, Value>, serde_json::Error> {
    let mut all = Map::new();
    for file in FILES {
        let some: Map<String, Value> = serde_json::from_str(file)?;
        all.extend(some);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_has_a_name_of_its_own() {
        let each = FILES.map(|file| serde_json::from_str::<Map<String, Value>>(file).unwrap().len());
        assert_eq!(schemas().unwrap().len(), each.iter().sum::<usize>());
    }
}
