// Causal attention of 16 rows by one warp over a paged cache: what `attend_split` and `attend_prefill` share.
//
// A row is a (token, query head) pair of one key head: row R of a segment is token R / G, head R % G, with G query
// heads to a key head; so any G packs without holes into the 16 rows of an mma tile.
//
// The order of every sum is fixed by the key's position alone: keys go in tiles of 64 through an online softmax, a
// span of 256 keys ends in a partial (m, l, acc), and partials are merged in order. Tiles and spans that are wholly
// masked for a row change none of its bits. So a row's result is the same, bit for bit, whatever the rows beside it,
// the chunk it came in, and whichever of the two kernels computed it.
//
// Segments, tables and cache: see `AttendArgs`. Fragment layouts: PTX manual, mma.m16n8k16.
#pragma once
#include "common.cuh"

constexpr int SLAB = 16;   // keys of a cache block
constexpr int TILE = 64;   // keys of a softmax step
constexpr int SPAN = 256;  // keys of a partial

// Consecutive tokens of one sequence.
struct Segment {
  int first_row;   // in the batch
  int num_tokens;
  int start;       // position of the first token
  int table;       // index of its first block in `tables`
};

struct AttendArgs {
  bf16* out;              // [rows, num_heads * head_dim]
  const bf16* qkv;        // [rows, (num_heads + 2 num_kv_heads) * head_dim], queries rotated
  const bf16* cache;      // [block][layer][k|v][kv_head][16][head_dim], at this layer of block 0
  const Segment* segments;
  const int* tables;      // block ids
  const int4* work;       // what each block of threads takes; see the kernels
  const int* num_work;
  float* partials;        // of `attend_split`: [partial][kv_head][16][head_dim]
  float2* partial_sums;   // [partial][kv_head][16] of (m, l)
  i64 block_stride;       // elements from a cache block to the next
  int num_heads;
  int num_kv_heads;
  int window;             // a token sees itself and window - 1 before it; INT_MAX sees all
  float scale;            // above 0
};

// Where 16-byte chunk `chunk` of row `row` lies in a tile of HD-wide rows, so that the eight rows of an ldmatrix
// fall into different banks.
template <int HD> __device__ __forceinline__ int swizzled(int row, int chunk) {
  constexpr int CHUNKS = HD / 8;
  const int mixed = CHUNKS % 8 == 0 ? chunk ^ (row & 7) : CHUNKS % 4 == 0 ? chunk ^ ((row >> 1) & 3) : chunk ^ ((row >> 2) & 1);
  return (row * CHUNKS + mixed) * 8;
}

// One row tile's place in the problem.
struct Rows {
  Segment segment;
  int group;      // query heads to a key head
  int kv_head;
  int first;      // first row of the tile
  int end;        // rows of the segment

  __device__ __forceinline__ int position(int row) const { return row < end ? segment.start + row / group : -1; }
  __device__ __forceinline__ i64 head_of(const AttendArgs& a, int row) const {
    return (i64)(segment.first_row + row / group) * a.num_heads + kv_head * group + row % group;
  }
};

__device__ __forceinline__ Rows rows_of(const AttendArgs& a, int segment, int kv_head, int first) {
  const int group = a.num_heads / a.num_kv_heads;
  const Segment s = a.segments[segment];
  return Rows{s, group, kv_head, first, s.num_tokens * group};
}

// Queries of `count` rows into shared memory, by `threads` threads; rows past the end are zero.
template <int HD>
__device__ __forceinline__ void load_queries(bf16* to, const AttendArgs& a, const Rows& rows, int count, int thread,
                                             int threads) {
  const i64 stride = (i64)(a.num_heads + 2 * a.num_kv_heads) * HD;
  for (int i = thread; i < count * (HD / 8); i += threads) {
    const int row = i / (HD / 8), chunk = i % (HD / 8), r = rows.first + row;
    const bf16* from = a.qkv + (rows.segment.first_row + r / rows.group) * stride +
                       (rows.kv_head * rows.group + r % rows.group) * HD;
    const bool in = r < rows.end;
    *reinterpret_cast<uint4*>(to + swizzled<HD>(row, chunk)) =
        in ? reinterpret_cast<const uint4*>(from)[chunk] : make_uint4(0, 0, 0, 0);
  }
}

// Starts the copy of one block's 16 keys or values; positions from `end` on are zero, whatever memory holds there.
template <int HD>
__device__ __forceinline__ void load_slab(bf16* to, const AttendArgs& a, const Rows& rows, int position, int end,
                                          bool values, int thread, int threads) {
  const bool any = position < end;
  const int block = any ? a.tables[rows.segment.table + position / SLAB] : 0;
  const i64 head = (values ? a.num_kv_heads : 0) + rows.kv_head;
  const bf16* from = a.cache + block * a.block_stride + head * (SLAB * HD);
  for (int i = thread; i < SLAB * (HD / 8); i += threads) {
    const int key = i / (HD / 8), chunk = i % (HD / 8);
    copy_async(to + swizzled<HD>(key, chunk), from + key * HD + chunk * 8, position + key < end ? 16 : 0);
  }
}

// What a warp carries from tile to tile. A lane holds rows lane/4 and lane/4 + 8, and of each the columns
// 8i + 2 (lane % 4) and the one after it.
template <int HD> struct Partial {
  float acc[HD / 8][4];
  float m[2];
  float l[2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < HD / 8; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    m[0] = m[1] = NEGATIVE_INFINITY;
    l[0] = l[1] = 0.0f;
  }

  // The sums of a row lie in four lanes until here.
  __device__ __forceinline__ void close() {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      l[half] += __shfl_xor_sync(0xffffffffu, l[half], 1);
      l[half] += __shfl_xor_sync(0xffffffffu, l[half], 2);
    }
  }
};

// Queries as A fragments: in registers where they fit beside the accumulators, else read again for each tile.
template <int HD> struct Queries {
  static constexpr bool KEPT = HD <= 128;
  unsigned kept[KEPT ? HD / 16 : 1][4];
  const bf16* shared;

  // `tile` holds this warp's 16 rows and must be complete.
  __device__ __forceinline__ void take(const bf16* tile) {
    shared = tile;
    if constexpr (KEPT) {
#pragma unroll
      for (int k = 0; k < HD / 16; k++) read(kept[k], k);
    }
  }
  __device__ __forceinline__ void read(unsigned (&to)[4], int k) const {
    const int lane = threadIdx.x & 31;
    load_matrices<false>(to, shared + swizzled<HD>(lane & 15, k * 2 + (lane >> 4)));
  }
  __device__ __forceinline__ void fragment(unsigned (&to)[4], int k) const {
    if constexpr (KEPT) {
#pragma unroll
      for (int i = 0; i < 4; i++) to[i] = kept[k][i];
    } else {
      read(to, k);
    }
  }
};

// scores[16 x 16] = queries * keys^T for one slab, as two tiles of 8 keys.
template <int HD>
__device__ __forceinline__ void score_slab(float (&low)[4], float (&high)[4], const Queries<HD>& queries,
                                           const bf16* keys) {
  const int lane = threadIdx.x & 31;
  const int key = (lane >> 4) * 8 + (lane & 7), chunk = (lane >> 3) & 1;
#pragma unroll
  for (int i = 0; i < 4; i++) low[i] = high[i] = 0.0f;
#pragma unroll
  for (int k = 0; k < HD / 16; k++) {
    unsigned q[4], b[4];
    queries.fragment(q, k);
    load_matrices<false>(b, keys + swizzled<HD>(key, k * 2 + chunk));
    mma_m16n8k16(low, q, b[0], b[1]);
    mma_m16n8k16(high, q, b[2], b[3]);
  }
}

// Turns a tile's scores into weights in place and rescales what was summed so far.
template <int HD>
__device__ __forceinline__ void softmax_tile(float (&s)[TILE / 8][4], Partial<HD>& p, const AttendArgs& a,
                                             const int (&position)[2], int first_key) {
  const float to_log2 = a.scale * 1.44269504f;
  const int key = first_key + (threadIdx.x & 3) * 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    // A key is seen from itself on and for `window` tokens; a row past the end has position -1 and sees none.
    const int last = position[half], oldest = last - a.window;
    float m = p.m[half];
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int at = key + n * 8 + j;
        float& x = s[n][half * 2 + j];
        x = at <= last && at > oldest ? x : NEGATIVE_INFINITY;
        m = fmaxf(m, x);
      }
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    const bool none = m == NEGATIVE_INFINITY;
    const float base = none ? 0.0f : m * to_log2;
    const float rescale = none ? 1.0f : exp2_approx((p.m[half] - m) * to_log2);
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float& x = s[n][half * 2 + j];
        x = exp2_approx(fmaf(x, to_log2, -base));
        sum += x;
      }
    p.m[half] = m;
    p.l[half] = fmaf(p.l[half], rescale, sum);
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
      p.acc[i][half * 2] *= rescale;
      p.acc[i][half * 2 + 1] *= rescale;
    }
  }
}

// acc += weights of slab `slab` of the tile * its values
template <int HD>
__device__ __forceinline__ void add_values(Partial<HD>& p, const float (&low)[4], const float (&high)[4],
                                           const bf16* values) {
  const int lane = threadIdx.x & 31;
  const int key = ((lane >> 3) & 1) * 8 + (lane & 7), chunk = lane >> 4;
  const unsigned w[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                         pack_bf16(high[2], high[3])};
#pragma unroll
  for (int c = 0; c < HD / 16; c++) {
    unsigned b[4];
    load_matrices<true>(b, values + swizzled<HD>(key, c * 2 + chunk));
    mma_m16n8k16(p.acc[c * 2], w, b[0], b[1]);
    mma_m16n8k16(p.acc[c * 2 + 1], w, b[2], b[3]);
  }
}

// How two partials of a row become one: factors for the sums so far and for those of the next span. A span without
// any key of the row must change nothing, so the factors are exact there.
struct Merge {
  float m, old_factor, new_factor;
};
__device__ __forceinline__ Merge merge(float old_m, float new_m, float scale) {
  if (new_m == NEGATIVE_INFINITY) return Merge{old_m, 1.0f, 0.0f};
  if (old_m == NEGATIVE_INFINITY) return Merge{new_m, 0.0f, 1.0f};
  const float m = fmaxf(old_m, new_m), to_log2 = scale * 1.44269504f;
  return Merge{m, exp2_approx((old_m - m) * to_log2), exp2_approx((new_m - m) * to_log2)};
}
__device__ __forceinline__ float merged(const Merge& f, float old_sum, float new_sum) {
  return fmaf(old_sum, f.old_factor, __fmul_rn(new_sum, f.new_factor));
}
