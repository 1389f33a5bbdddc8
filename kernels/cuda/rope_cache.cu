// Norm of query and key heads (Qwen3; null weights skip it), rotation of both, keys and values into the cache.
//
// grid (rows, ceil(heads / 4)) with heads = num_heads + 2 num_kv_heads; 128 threads, a warp for each head of a row.
// Pairs are (i, i + head_dim/2); head_dim % 4 == 0 and head_dim <= 256. Queries are written back, rotated; keys and
// values only to the cache. A row whose slot is negative (padding of a graph) is left alone.
// cache: [block][layer][k|v][kv_head][16][head_dim] bf16; the pointer is that of block 0 of this layer.
#include "common.cuh"

constexpr int ROPE_PAIRS = 4;  // of each lane: 2 neighbours in each half, twice

struct RopeCacheArgs {
  bf16* qkv;                // [rows, heads * head_dim]
  const float* q_weight;    // [head_dim], or null
  const float* k_weight;    // [head_dim], or null
  const float2* rotations;  // [positions, head_dim / 2] of (cos, sin)
  const int* positions;     // [rows]
  const int* slots;         // [rows]: block * 16 + offset
  bf16* cache;
  i64 block_stride;  // elements from a block to the next
  int num_heads;
  int num_kv_heads;
  int head_dim;
  float eps;
};

struct HeadHalves {
  float low[ROPE_PAIRS], high[ROPE_PAIRS];
};

// The lane's share of both halves of a head; what lies past the end is zero.
__device__ __forceinline__ HeadHalves load_halves(const bf16* head, int lane, int half) {
  HeadHalves h;
#pragma unroll
  for (int c = 0; c < ROPE_PAIRS / 2; c++) {
    const int i = c * 64 + lane * 2;
    const bool in = i < half;
    const unsigned low = in ? *reinterpret_cast<const unsigned*>(head + i) : 0u;
    const unsigned high = in ? *reinterpret_cast<const unsigned*>(head + half + i) : 0u;
    h.low[c * 2] = low_half(low), h.low[c * 2 + 1] = high_half(low);
    h.high[c * 2] = low_half(high), h.high[c * 2 + 1] = high_half(high);
  }
  return h;
}

__device__ __forceinline__ void store_halves(bf16* head, const HeadHalves& h, int lane, int half) {
#pragma unroll
  for (int c = 0; c < ROPE_PAIRS / 2; c++) {
    const int i = c * 64 + lane * 2;
    if (i >= half) break;
    *reinterpret_cast<unsigned*>(head + i) = pack_bf16(h.low[c * 2], h.low[c * 2 + 1]);
    *reinterpret_cast<unsigned*>(head + half + i) = pack_bf16(h.high[c * 2], h.high[c * 2 + 1]);
  }
}

__device__ __forceinline__ void norm_halves(HeadHalves& h, const float* weight, float eps, int lane, int half) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < ROPE_PAIRS; j++) sum += h.low[j] * h.low[j] + h.high[j] * h.high[j];
  const float scale = rsqrtf(warp_sum(sum) / (float)(2 * half) + eps);
#pragma unroll
  for (int j = 0; j < ROPE_PAIRS; j++) {
    const int i = (j / 2) * 64 + lane * 2 + j % 2;
    if (i >= half) break;
    h.low[j] *= scale * weight[i];
    h.high[j] *= scale * weight[half + i];
  }
}

__device__ __forceinline__ void rotate_halves(HeadHalves& h, const float2* rotation, int lane, int half) {
#pragma unroll
  for (int j = 0; j < ROPE_PAIRS; j++) {
    const int i = (j / 2) * 64 + lane * 2 + j % 2;
    if (i >= half) break;
    const float2 r = rotation[i];
    const float low = h.low[j], high = h.high[j];
    h.low[j] = low * r.x - high * r.y;
    h.high[j] = high * r.x + low * r.y;
  }
}

KERNEL(rope_cache, RopeCacheArgs, 128) {
  const int row = blockIdx.x, head = blockIdx.y * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  const int num_rotated = a.num_heads + a.num_kv_heads, num_all = num_rotated + a.num_kv_heads;
  const int slot = a.slots[row], half = a.head_dim / 2;
  if (head >= num_all || slot < 0) return;
  bf16* from = a.qkv + ((i64)row * num_all + head) * a.head_dim;
  HeadHalves h = load_halves(from, lane, half);
  if (head < num_rotated) {
    const float* weight = head < a.num_heads ? a.q_weight : a.k_weight;
    if (weight) norm_halves(h, weight, a.eps, lane, half);
    rotate_halves(h, a.rotations + (i64)a.positions[row] * half, lane, half);
  }
  bf16* to = from;
  if (head >= a.num_heads)  // keys and values are one run of heads, here and in the cache
    to = a.cache + (slot / 16) * a.block_stride + ((i64)(head - a.num_heads) * 16 + slot % 16) * a.head_dim;
  store_halves(to, h, lane, half);
}
