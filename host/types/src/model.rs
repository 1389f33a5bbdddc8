//! Names of models that mean something.

/// The name that a router chooses a model for.
pub const ROUTED_MODEL: &str = "auto";

/// Which of these answers somebody who chats and names none: what routers choose, where they do, or else the first that
/// answers chats. Each is a name, and whether its model does that.
pub fn default_model<'a>(models: impl IntoIterator<Item = (&'a str, bool)>) -> Option<&'a str> {
    let mut first = None;
    for (name, _) in models.into_iter().filter(|(_, chats)| *chats) {
        if name == ROUTED_MODEL {
            return Some(name);
        }
        first.get_or_insert(name);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_no_model_gets_what_routers_choose_or_else_the_first_that_chats() {
        for (models, expected) in [
            (&[("vectors", false), ("a", true), ("b", true)][..], Some("a")),
            (&[("a", true), ("auto", true)], Some("auto")),
            (&[("auto", false), ("a", true)], Some("a")),
            (&[("vectors", false)], None),
            (&[], None),
        ] {
            assert_eq!(default_model(models.iter().copied()), expected, "{models:?}");
        }
    }
}
