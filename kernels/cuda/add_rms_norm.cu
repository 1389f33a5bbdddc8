// residual += delta; out = residual / sqrt(mean(residual^2) + eps) * weight
//
// grid (rows), 512 threads; width % 8 == 0 and width <= 16384; 16-byte loads, each value is read once and kept in
// registers. The sum's order depends on the width only, so a row's result does not depend on the rows beside it.
// With `rows`, output row i is made from row rows[i] and the residual stays as it is: that is the norm before the
// logits, which only some rows need.
//
// sass add_rms_norm: LDG.E.128 STG.E.128
#include "common.cuh"

constexpr int NORM_THREADS = 512;
constexpr int NORM_CHUNKS = 4;  // of 8 values, for each thread

struct AddRmsNormArgs {
  float* residual;      // [rows, width]
  const bf16* delta;    // [rows, width], or null
  const float* weight;  // [width]
  bf16* out;            // [grid, width]
  const int* rows;      // [grid], or null
  int width;
  float eps;
};

KERNEL(add_rms_norm, AddRmsNormArgs, NORM_THREADS) {
  const i64 row = a.rows ? a.rows[blockIdx.x] : (int)blockIdx.x;
  float* residual = a.residual + row * a.width;
  Eight kept[NORM_CHUNKS];
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < NORM_CHUNKS; c++) {
    const int i = (c * NORM_THREADS + threadIdx.x) * 8;
    if (i >= a.width) break;
    kept[c] = load8(residual + i);
    if (a.delta) {
      const Eight delta = load8(a.delta + row * a.width + i);
#pragma unroll
      for (int j = 0; j < 8; j++) kept[c].x[j] += delta.x[j];
      if (!a.rows) store8(residual + i, kept[c]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) sum += kept[c].x[j] * kept[c].x[j];
  }
  const float scale = rsqrtf(block_sum(sum) / (float)a.width + a.eps);
  bf16* out = a.out + (i64)blockIdx.x * a.width;
#pragma unroll
  for (int c = 0; c < NORM_CHUNKS; c++) {
    const int i = (c * NORM_THREADS + threadIdx.x) * 8;
    if (i >= a.width) break;
    const Eight weight = load8(a.weight + i);
#pragma unroll
    for (int j = 0; j < 8; j++) kept[c].x[j] *= scale * weight.x[j];
    store8(out + i, kept[c]);
  }
}
