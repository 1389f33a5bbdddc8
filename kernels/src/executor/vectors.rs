//! The rows that a program which makes vectors kept, on the host.
//!
//! They are copied behind the step that made them and taken when it is collected, so that a device that fails over them
//! is lost as by any other part of a step. There is one staging area: the next step is queued after that.

use crate::driver::{Context, Pinned, Slice, Stream};
use half::bf16;
use std::sync::Arc;
use tidegate_device::DeviceError;

pub(super) struct Vectors {
    staging: Pinned,
    /// Numbers whose copy was queued and not taken.
    coming: Option<usize>,
    /// Of the last step that was collected, row by row.
    rows: Vec<f32>,
}

impl Vectors {
    /// With room for all that `kept` holds.
    pub(super) fn new(context: &Arc<Context>, kept: Slice<bf16>) -> Result<Self, DeviceError> {
        let bytes = kept.bytes();
        let staging = Pinned::new(context, bytes).map_err(|e| e.while_allocating("staging of vectors", bytes))?;
        Ok(Self { staging, coming: None, rows: Vec::with_capacity(kept.len()) })
    }

    /// Forgets the last step's rows, since another begins.
    pub(super) fn begin(&mut self) -> Result<(), DeviceError> {
        if self.coming.is_some() {
            return Err(DeviceError::BadBatch("the vectors of the last step were not collected".to_owned()));
        }
        self.rows.clear();
        Ok(())
    }

    /// Queues the copy of the first `len` numbers of `kept`.
    pub(super) fn queue(&mut self, stream: &Stream, kept: Slice<bf16>, len: usize) -> Result<(), DeviceError> {
        self.begin()?;
        if len > 0 {
            stream.download(&mut self.staging, kept, len * size_of::<bf16>())?;
        }
        self.coming = Some(len);
        Ok(())
    }

    /// Takes what was copied. The caller waited for it.
    pub(super) fn take(&mut self) {
        let Some(len) = self.coming.take() else { return };
        let bytes = &self.staging.bytes()[..len * size_of::<bf16>()];
        self.rows.extend(bytes.as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()));
    }

    /// They will not come.
    pub(super) fn abandon(&mut self) {
        self.coming = None;
    }

    /// Row `row` of `width` numbers.
    pub(super) fn row(&self, row: usize, width: usize) -> Option<&[f32]> {
        self.rows.get(row * width..(row + 1) * width)
    }
}
