//! A device for tests, with memory that begins and ends where its contents do: the stand-in driver's, or the
//! machine's own.

use std::sync::{Arc, OnceLock};
use tidegate_emu::{Device, Order, device};
use tidegate_kernels::compile::{arch_name, images};
use tidegate_kernels::driver::{Arena, Context, Kernels, Pinned, Slice, Stream};
use tidegate_kernels::probe::probe;

/// Orders of warps and lanes that every case is run in.
pub const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Random(7)];

pub struct Rig {
    device: Device,
    pub kernels: Arc<Kernels>,
    pub stream: Stream,
    context: Arc<Context>,
    memory: Vec<Arena>,
}

impl Rig {
    /// `None` where there is no compiler; the test then says so and passes.
    pub fn new() -> Option<Self> {
        static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
        let device = device()?;
        probe().unwrap();
        let context = Context::open(0).unwrap();
        let compile = || images(&arch_name(context.capability().unwrap()), None).unwrap();
        Some(Self {
            device,
            kernels: Kernels::load(&context, IMAGES.get_or_init(compile)).unwrap(),
            stream: Stream::new(&context).unwrap(),
            context,
            memory: Vec::new(),
        })
    }

    /// A device has an order of its own.
    pub fn order(&self, order: Order) {
        if let Device::Standin(standin) = self.device {
            standin.order(order);
        }
    }

    /// A buffer that holds garbage.
    pub fn buffer<T: Plain>(&mut self, len: usize) -> Slice<T> {
        let arena = Arena::new(&self.context, len * size_of::<T>()).unwrap();
        let slice = arena.carver().take(len).unwrap();
        self.memory.push(arena);
        slice
    }

    /// A buffer with these contents.
    pub fn upload<T: Plain>(&mut self, contents: &[T]) -> Slice<T> {
        let slice = self.buffer(contents.len());
        self.put(slice, contents);
        slice
    }

    pub fn put<T: Plain>(&self, slice: Slice<T>, contents: &[T]) {
        let bytes = as_bytes(contents);
        let mut staging = Pinned::new(&self.context, bytes.len()).unwrap();
        staging.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.stream.upload(slice, &staging, 0, bytes.len()).unwrap();
        self.stream.synchronize().unwrap();
    }

    pub fn download<T: Plain>(&self, slice: Slice<T>) -> Vec<T> {
        let mut staging = Pinned::new(&self.context, slice.bytes()).unwrap();
        self.stream.download(&mut staging, slice, slice.bytes()).unwrap();
        self.stream.synchronize().unwrap();
        let bytes = &staging.bytes()[..slice.bytes()];
        // SAFETY: `Plain` has no invalid patterns; reads need no alignment.
        bytes.chunks_exact(size_of::<T>()).map(|b| unsafe { b.as_ptr().cast::<T>().read_unaligned() }).collect()
    }
}

/// Plain numbers, and structs of them without padding.
///
/// # Safety
/// Every pattern of bytes is a value, and there is no padding.
pub unsafe trait Plain: Copy {}
macro_rules! plain {
    ($($type:ty),* $(,)?) => { $(
        // SAFETY: numbers, or four-byte fields only.
        unsafe impl Plain for $type {}
    )* };
}
plain!(
    f32,
    i32,
    u32,
    half::bf16,
    [f32; 2],
    [i32; 4],
    tidegate_kernels::ops::attend::SegmentInfo,
    tidegate_kernels::ops::sample::RowInfo,
    tidegate_kernels::ops::sample::Bias,
    tidegate_kernels::ops::sample::Sampled,
    tidegate_kernels::ops::sample::Top,
);

fn as_bytes<T: Plain>(contents: &[T]) -> &[u8] {
    // SAFETY: `Plain` has no padding.
    unsafe { std::slice::from_raw_parts(contents.as_ptr().cast(), size_of_val(contents)) }
}
