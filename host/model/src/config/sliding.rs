//! Sliding windows: which layers see only the last tokens. The families read the same keys differently.

use crate::error::ModelError;
use crate::json::Object;

/// The keys as they stand; the architectures ask by family.
#[derive(Debug, PartialEq)]
pub(crate) struct Sliding {
    /// `sliding_window`; `None` when absent, `Some(None)` when null.
    window: Option<Option<usize>>,
    /// `use_sliding_window`
    enabled: bool,
    max_window_layers: usize,
    /// `layer_types`: whether each layer slides.
    layers: Option<Vec<bool>>,
    num_layers: usize,
}

/// The window of each layer; `None` sees all.
pub(crate) type Windows = Vec<Option<usize>>;

impl Sliding {
    pub(crate) fn read(object: &Object, num_layers: usize) -> Result<Self, ModelError> {
        let window = match object.uint("sliding_window", 1..=1 << 24)? {
            None if object.is_null("sliding_window") => Some(None),
            other => other.map(Some),
        };
        Ok(Self {
            window,
            enabled: object.flag("use_sliding_window")?.unwrap_or(false),
            max_window_layers: object.uint("max_window_layers", 0..=1 << 24)?.unwrap_or(28),
            layers: layers(object, num_layers)?,
            num_layers,
        })
    }

    /// Llama has no window.
    pub(crate) fn never(&self) -> Result<Windows, String> {
        self.expect_layers(false)?;
        Ok(vec![None; self.num_layers])
    }

    /// Mistral: `sliding_window` holds for all layers; transformers takes 4096 where the key is absent.
    pub(crate) fn everywhere(&self) -> Result<Windows, String> {
        let window = self.window.unwrap_or(Some(4096));
        self.expect_layers(window.is_some())?;
        Ok(vec![window; self.num_layers])
    }

    /// Qwen: only with `use_sliding_window`; `layer_types` says where, or all layers from `max_window_layers` on.
    pub(crate) fn by_layer(&self) -> Result<Windows, String> {
        let window = if self.enabled { self.window.unwrap_or(Some(4096)) } else { None };
        let Some(layers) = &self.layers else {
            let of = |layer| if layer >= self.max_window_layers { window } else { None };
            return Ok((0..self.num_layers).map(of).collect());
        };
        if window.is_none() && layers.contains(&true) {
            return Err("names sliding_attention, but `use_sliding_window` is off".to_owned());
        }
        Ok(layers.iter().map(|slides| if *slides { window } else { None }).collect())
    }

    fn expect_layers(&self, slides: bool) -> Result<(), String> {
        match &self.layers {
            Some(layers) if layers.contains(&!slides) => {
                Err("mixes kinds of attention that this architecture does not mix".to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn layers(object: &Object, num_layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
    let Some(types) = object.texts("layer_types")? else { return Ok(None) };
    if types.len() != num_layers {
        return Err(object.wrong("layer_types", format!("has {} entries for {num_layers} layers", types.len())));
    }
    let slides = |name: &&str| match *name {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => Err(object.unsupported("layer_types", other, "full_attention, sliding_attention")),
    };
    types.iter().map(slides).collect::<Result<_, _>>().map(Some)
}
