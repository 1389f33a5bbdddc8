//! What a plugin remembers of a caller.

/// Something remembered, as its caller may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The plugin's name, a slash, and the plugin's own id of it.
    pub id: String,
    /// What is remembered.
    pub text: String,
    /// How well it fits the question; higher is better.
    pub score: Option<f32>,
}
