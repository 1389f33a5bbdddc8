//! What entering a guest costs by itself: an export that takes nothing and does nothing, called as a function and as a
//! future (which every stage is, since its imports may wait). `cargo xtask bench plugins` runs it and prints both.
//!
//! The engine has the settings of the sandbox that matter here: no component-model async, epochs, pooled stacks. It prints
//! nanoseconds of this thread's CPU for one call, a line each; medians over batches.
#![allow(clippy::print_stdout, reason = "a program that prints its figures")]

use std::error::Error;
use std::time::Duration;
use wasmtime::component::{Component, Linker, TypedFunc};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store};

const BATCHES: usize = 31;
const CALLS: u32 = 20_000;

/// ```wat
/// (component
///   (core module (func (export "n")))
///   (core instance (instantiate 0))
///   (alias core export 0 "n" (core func))
///   (type (func))
///   (func (type 0) (canon lift (core func 0)))
///   (export "n" (func 0)))
/// ```
const NO_OP: &[u8] = b"\0asm\x0d\0\x01\0\
    \x01\x1f\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x05\x01\x01n\0\0\x0a\x04\x01\x02\0\x0b\
    \x02\x04\x01\0\0\0\
    \x06\x07\x01\0\0\x01\0\x01n\
    \x07\x05\x01\x40\0\x01\0\
    \x08\x06\x01\0\0\0\0\0\
    \x0b\x07\x01\0\x01n\x01\0\0";

fn main() -> Result<(), Box<dyn Error>> {
    let mut settings = Config::new();
    settings.concurrency_support(false).epoch_interruption(true);
    settings.allocation_strategy(InstanceAllocationStrategy::Pooling(PoolingAllocationConfig::new()));
    let engine = Engine::new(&settings)?;
    let component = Component::new(&engine, NO_OP)?;
    let mut store = Store::new(&engine, ());
    store.set_epoch_deadline(u64::MAX / 2);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let linker = Linker::new(&engine);
    let instance = runtime.block_on(linker.instantiate_async(&mut store, &component))?;
    let no_op: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "n")?;
    println!("{}", time(|| no_op.call(&mut store, ()))?);
    let waiting = |store: &mut Store<()>| -> wasmtime::Result<()> {
        runtime.block_on(async {
            for _ in 0..CALLS {
                no_op.call_async(&mut *store, ()).await?;
            }
            Ok(())
        })
    };
    println!("{}", batches(|| waiting(&mut store))?);
    Ok(())
}

fn time(mut call: impl FnMut() -> wasmtime::Result<()>) -> Result<f64, Box<dyn Error>> {
    batches(|| (0..CALLS).try_for_each(|_| call()))
}

/// Nanoseconds of one call of those of a batch.
fn batches(mut batch: impl FnMut() -> wasmtime::Result<()>) -> Result<f64, Box<dyn Error>> {
    let mut spent = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let before = thread_ns()?;
        batch()?;
        spent.push((thread_ns()? - before) / f64::from(CALLS));
    }
    spent.sort_by(f64::total_cmp);
    Ok(spent[BATCHES / 2])
}

/// What the kernel charged this thread. It settles that at ticks, milliseconds apart, and when a thread sleeps.
fn thread_ns() -> Result<f64, Box<dyn Error>> {
    std::thread::sleep(Duration::from_nanos(1));
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(stat.split(' ').next().unwrap_or_default().parse()?)
}
