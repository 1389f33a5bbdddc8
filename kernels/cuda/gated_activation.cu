// out = act(gate) * up
//
// grid (any), 256 threads, each takes 8 values at a time by 16-byte loads; width % 8 == 0.
//
// sass silu_mul: LDG.E.128 STG.E.128
// sass gelu_mul: LDG.E.128 STG.E.128
#include "common.cuh"

struct GatedActivationArgs {
  const bf16* gate_up;  // [rows, 2 * width]: gate, then up
  bf16* out;            // [rows, width]
  int rows;
  int width;
};

// x * sigmoid(x)
struct Silu {
  __device__ __forceinline__ float operator()(float x) const {
    return __fdividef(x, 1.0f + exp2_approx(-1.44269504f * x));
  }
};
// 0.5 x (1 + tanh(y)) = x * sigmoid(2y) with y = sqrt(2/pi) (x + 0.044715 x^3)
struct GeluTanh {
  __device__ __forceinline__ float operator()(float x) const {
    const float y = 0.79788456f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + exp2_approx(-2.88539008f * y));
  }
};

template <class Act>
__device__ __forceinline__ void gated(const GatedActivationArgs& a, Act act) {
  const i64 per_row = a.width / 8, count = a.rows * per_row;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
    const i64 row = i / per_row, col = (i - row * per_row) * 8;
    const bf16* gate = a.gate_up + row * 2 * a.width + col;
    Eight x = load8(gate);
    const Eight up = load8(gate + a.width);
#pragma unroll
    for (int j = 0; j < 8; j++) x.x[j] = act(x.x[j]) * up.x[j];
    store8(a.out + row * a.width + col, x);
  }
}

KERNEL(silu_mul, GatedActivationArgs, 256) { gated(a, Silu()); }
KERNEL(gelu_mul, GatedActivationArgs, 256) { gated(a, GeluTanh()); }
