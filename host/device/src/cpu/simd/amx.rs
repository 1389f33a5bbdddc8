//! AMX: eight registers of sixteen rows of 64 bytes, and one instruction that multiplies two of them: sixteen rows of
//! activations by sixteen columns of weights, over 32 columns of inputs. It does eight times the multiply-adds of
//! AVX512_BF16, so that a prefill is no longer bound by them.
//!
//! Written as assembly, because the intrinsics are not stable. The tile registers live from one `asm!` to the next:
//! the compiler knows of none of them and uses none.
//!
//! Sums: the instruction adds its 16 even and 16 odd products as two chains, and their sum to the accumulator (Intel,
//! Software Developer's Manual, TDPBF16PS), for each output alone: the bits depend on where a step of 32 columns
//! begins, which is at multiples of 32, and on nothing else. `portable` emulates it to the bit.

use super::{ROW_BYTES, STEP_PAIRS, TILE_ROWS, TileProduct};
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Whether the processor has the tiles and bf16 products on them, and the system lets this process use them. Asked
/// once: from then on every thread of the process may.
pub(super) fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        const BF16: u32 = 1 << 22;
        const TILE: u32 = 1 << 24;
        let has = __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE;
        has && ask()
    })
}

/// Linux gives the registers' 8 KB of state to those that ask.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XTILEDATA: i64 = 18;
    let answer: i64;
    // SAFETY: the call reads no memory of ours; a system that does not know it answers with an error.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => answer, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}

/// What `ldtilecfg` reads: palette, then bytes of a row and rows of each register.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shape {
    /// Registers 0 to 3: sums of two halves of tokens by two groups of outputs; 4 and 5: the halves' activations; 6
    /// and 7: the groups' weights. A half may be empty: registers of no rows are never named.
    fn new(halves: [usize; 2], pairs: usize) -> Self {
        let mut shape = Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut set = |register: usize, rows: usize, bytes: usize| {
            if rows > 0 {
                shape.rows[register] = rows as u8;
                shape.row_bytes[register] = bytes as u16;
            }
        };
        for (half, rows) in halves.into_iter().enumerate() {
            set(2 * half, rows, ROW_BYTES);
            set(2 * half + 1, rows, ROW_BYTES);
            set(4 + half, rows, pairs * 4);
        }
        set(6, pairs, ROW_BYTES);
        set(7, pairs, ROW_BYTES);
        shape
    }
}

/// Gives the registers their shape.
///
/// # Safety
/// [`is_allowed`] has said so.
pub(super) unsafe fn shape(halves: [usize; 2], pairs: usize) {
    let fits = (1..=TILE_ROWS).contains(&halves[0]) && halves[1] <= TILE_ROWS && (1..=STEP_PAIRS).contains(&pairs);
    debug_assert!(fits, "{halves:?} tokens by {pairs} pairs");
    let shape = Shape::new(halves, pairs);
    // SAFETY: as the caller vouches; a shape that does not fit is a fault of the processor, none of memory.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, preserves_flags, readonly)) };
}

impl TileProduct {
    /// In `steps` steps, at least one.
    ///
    /// # Safety
    /// The registers have the shape of the product; `w`, `x`, `begin` and `out` have what the fields say, and nobody else
    /// touches `out`.
    pub(super) unsafe fn compute(&self, steps: usize) {
        debug_assert!(steps > 0, "a product of nothing");
        let two = self.halves[1] > 0;
        // SAFETY: as the caller vouches; the second half lies behind the first.
        unsafe {
            self.begin(two);
            if two {
                self.add_two(steps)
            } else {
                self.add_one(steps)
            }
            self.end(two);
        }
    }

    /// # Safety
    /// As for [`Self::compute`].
    unsafe fn begin(&self, two: bool) {
        // SAFETY: as the caller vouches.
        unsafe {
            let step = self.begin_step;
            asm!("tileloadd tmm0, [{b} + {step}]", "tileloadd tmm1, [{b} + {step} + 64]",
                b = in(reg) self.begin, step = in(reg) step, options(nostack, preserves_flags, readonly));
            if two {
                let second = self.begin.byte_add(self.halves[0] * step);
                asm!("tileloadd tmm2, [{b} + {step}]", "tileloadd tmm3, [{b} + {step} + 64]",
                    b = in(reg) second, step = in(reg) step, options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// # Safety
    /// As for [`Self::compute`].
    unsafe fn end(&self, two: bool) {
        // SAFETY: as the caller vouches.
        unsafe {
            let step = self.out_step;
            asm!("tilestored [{o} + {step}], tmm0", "tilestored [{o} + {step} + 64], tmm1",
                o = in(reg) self.out, step = in(reg) step, options(nostack, preserves_flags));
            if two {
                let second = self.out.byte_add(self.halves[0] * step);
                asm!("tilestored [{o} + {step}], tmm2", "tilestored [{o} + {step} + 64], tmm3",
                    o = in(reg) second, step = in(reg) step, options(nostack, preserves_flags));
            }
        }
    }

    /// # Safety
    /// As for [`Self::compute`].
    unsafe fn add_one(&self, steps: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            asm!(
                "2:",
                "tileloadd tmm4, [{x} + {xs}]",
                "tileloadd tmm6, [{w} + {ws}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {ws} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {w}, 2048",
                "add {x}, {xstep}",
                "dec {n}",
                "jnz 2b",
                w = inout(reg) self.w => _,
                ws = in(reg) 2 * ROW_BYTES,
                x = inout(reg) self.x[0] => _,
                xs = in(reg) ROW_BYTES,
                xstep = in(reg) self.halves[0] * ROW_BYTES,
                n = inout(reg) steps => _,
                options(nostack, readonly)
            );
        }
    }

    /// # Safety
    /// As for [`Self::compute`].
    unsafe fn add_two(&self, steps: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            asm!(
                "2:",
                "tileloadd tmm4, [{x} + {xs}]",
                "tileloadd tmm6, [{w} + {ws}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {ws} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{y} + {xs}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {w}, 2048",
                "add {x}, {xstep}",
                "add {y}, {ystep}",
                "dec {n}",
                "jnz 2b",
                w = inout(reg) self.w => _,
                ws = in(reg) 2 * ROW_BYTES,
                x = inout(reg) self.x[0] => _,
                y = inout(reg) self.x[1] => _,
                xs = in(reg) ROW_BYTES,
                xstep = in(reg) self.halves[0] * ROW_BYTES,
                ystep = in(reg) self.halves[1] * ROW_BYTES,
                n = inout(reg) steps => _,
                options(nostack, readonly)
            );
        }
    }
}

/// Lets the registers go, so that a switch to another thread need not save them.
///
/// # Safety
/// [`is_allowed`] has said so.
pub(super) unsafe fn release() {
    // SAFETY: as the caller vouches.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}
