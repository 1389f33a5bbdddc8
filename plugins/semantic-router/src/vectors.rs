//! Vectors of texts: unit length, one number of dimensions, checked where they come in. A model that answers with
//! something else is a failure of the call, never a route.

use tidegate_plugin_sdk::Error;

const MAX_DIMENSIONS: usize = 4096;

/// A direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit(Vec<f32>);

impl Unit {
    /// Scales a vector to length 1.
    ///
    /// # Errors
    /// For numbers that are none, vectors of length 0 and more than 4,096 dimensions.
    pub fn new(mut vector: Vec<f32>) -> Result<Self, Error> {
        let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        if !length.is_finite() || length == 0.0 || vector.len() > MAX_DIMENSIONS {
            let problem = format!("the model's vector of {} dimensions has the length {length}", vector.len());
            return Err(Error::Other(problem));
        }
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        Ok(Self(vector))
    }

    /// How many numbers it has.
    pub fn dimensions(&self) -> usize {
        self.0.len()
    }

    /// The cosine, from -1 to 1; `None` between vectors of different models.
    pub fn cosine(&self, other: &Self) -> Option<f32> {
        let dot = || self.0.iter().zip(&other.0).map(|(a, b)| a * b).sum::<f32>().clamp(-1.0, 1.0);
        (self.dimensions() == other.dimensions()).then(dot)
    }
}

/// Vectors of one model as bytes: the number of dimensions, then all numbers, little-endian.
pub fn to_bytes<'a>(vectors: impl IntoIterator<Item = &'a Unit>) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<u32>()];
    for unit in vectors {
        bytes[..size_of::<u32>()].copy_from_slice(&(unit.dimensions() as u32).to_le_bytes());
        bytes.extend(unit.0.iter().flat_map(|x| x.to_le_bytes()));
    }
    bytes
}

/// How many bytes so many vectors are.
pub fn bytes_of(count: usize, dimensions: usize) -> usize {
    size_of::<u32>() + count * dimensions * size_of::<f32>()
}

/// `count` vectors from bytes; `None` where these are not such.
pub fn from_bytes(bytes: &[u8], count: usize) -> Option<Vec<Unit>> {
    let (dimensions, numbers) = bytes.split_first_chunk::<4>()?;
    let dimensions = u32::from_le_bytes(*dimensions) as usize;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) || bytes.len() != bytes_of(count, dimensions) {
        return None;
    }
    let vector = |bytes: &[u8]| {
        let numbers = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four));
        Unit::new(numbers.collect()).ok()
    };
    numbers.chunks_exact(dimensions * size_of::<f32>()).map(vector).collect()
}
