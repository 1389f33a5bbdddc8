//! What serde says of a value of the wrong kind, in words of whoever writes a config: it calls kinds as Rust does.

/// The message in such words, such as "invalid type: string \"x\", expected a whole number, 0 or more".
pub(super) fn plain(message: &str) -> String {
    let is_of_kinds = ["invalid type: ", "invalid value: "].iter().any(|start| message.starts_with(start));
    match message.rsplit_once(", expected ") {
        Some((what, expected)) if is_of_kinds => format!("{}, expected {}", found(what), wanted(expected)),
        _ => message.to_owned(),
    }
}

fn found(what: &str) -> String {
    match (what, what.strip_prefix("invalid type: floating point ")) {
        ("invalid type: map", _) => "invalid type: table".into(),
        ("invalid type: sequence", _) => "invalid type: list".into(),
        (_, Some(number)) => format!("invalid type: number {number}"),
        _ => what.to_owned(),
    }
}

fn wanted(expected: &str) -> String {
    match expected {
        "usize" | "u64" => "a whole number, 0 or more".into(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u16" => format!("a whole number from 0 to {}", u16::MAX),
        "u8" => format!("a whole number from 0 to {}", u8::MAX),
        "i64" => "a whole number".into(),
        "f64" | "f32" => "a number".into(),
        "a sequence" => "a list".into(),
        "a map" => "a table".into(),
        kind if kind.starts_with("struct ") => "a table".into(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_whoever_writes_a_config_knows_them() {
        for (message, expected) in [
            (
                "invalid type: string \"x\", expected usize",
                "invalid type: string \"x\", expected a whole number, 0 or more",
            ),
            (
                "invalid value: integer `-1`, expected u8",
                "invalid value: integer `-1`, expected a whole number from 0 to 255",
            ),
            ("invalid type: floating point `1.5`, expected i64", "invalid type: number `1.5`, expected a whole number"),
            ("invalid type: map, expected a sequence", "invalid type: table, expected a list"),
            ("invalid type: sequence, expected struct ServerConfig", "invalid type: list, expected a table"),
            ("invalid type: integer `3`, expected a string", "invalid type: integer `3`, expected a string"),
            ("unknown field `a`, expected u8", "unknown field `a`, expected u8"),
        ] {
            assert_eq!(plain(message), expected);
        }
    }
}
