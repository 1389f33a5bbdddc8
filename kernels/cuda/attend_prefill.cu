// Attention of many rows: a block of threads takes 64 rows, 16 to a warp, and all keys that they see, in order.
//
// 128 threads; work items are (segment, first row, 0, 0), indices as in `attend_split`. Keys and values of a tile are
// loaded once for the four warps; the next tile's are on their way while this one is computed (not for heads of 256,
// which would not fit). Shared memory: see `Layout`. At the end of a span the warp's partial is merged into its
// total, which lies in shared memory: the same steps in the same order as `attend_split` and `attend_combine`.
//
// sass attend_prefill_*: HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.M88.4 LDSM.16.MT88.4
#include "attention.cuh"

constexpr int WARPS = 4;
constexpr int SLABS = TILE / SLAB;

template <int HD> struct Layout {
  static constexpr int STAGES = HD <= 128 ? 2 : 1;
  static constexpr int TILE_ELEMS = TILE * HD;
  static constexpr int KEYS = 0;                                      // [stage][64][HD] bf16
  static constexpr int VALUES = KEYS + STAGES * TILE_ELEMS;           // likewise
  static constexpr int QUERIES = VALUES + STAGES * TILE_ELEMS;        // [64][HD] bf16
  static constexpr int TOTALS = Queries<HD>::KEPT ? QUERIES : QUERIES + WARPS * 16 * HD;  // [64][HD] f32
  static constexpr int BYTES = TOTALS * 2 + WARPS * 16 * HD * 4;
};

// A warp's merged partials; acc lies in shared memory, each lane's own elements at a stride of 32 lanes.
template <int HD> struct Total {
  float4* acc;
  float m[2], l[2];

  __device__ __forceinline__ void merge_in(const Partial<HD>& p, float scale) {
    Merge f[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      f[half] = merge(m[half], p.m[half], scale);
      m[half] = f[half].m;
      l[half] = merged(f[half], l[half], p.l[half]);
    }
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
      const float4 old = acc[i * 32];
      acc[i * 32] = make_float4(merged(f[0], old.x, p.acc[i][0]), merged(f[0], old.y, p.acc[i][1]),
                                merged(f[1], old.z, p.acc[i][2]), merged(f[1], old.w, p.acc[i][3]));
    }
  }
  __device__ __forceinline__ void clear() {
    m[0] = m[1] = NEGATIVE_INFINITY;
    l[0] = l[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < HD / 8; i++) acc[i * 32] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
};

template <int HD>
__device__ __forceinline__ void start_tile(bf16* to, const AttendArgs& a, const Rows& rows, int first_key, int end,
                                           bool values) {
#pragma unroll 1  // unrolled, its addresses cost heads of 256 the registers of the accumulators
  for (int j = 0; j < SLABS; j++) {
    const int position = first_key + j * SLAB;
    if (first_key < end)
      load_slab<HD>(to + j * SLAB * HD, a, rows, position, end, values, threadIdx.x, WARPS * 32);
  }
  copy_commit();
}

template <int HD>
__device__ __forceinline__ void store_total(const Total<HD>& total, const AttendArgs& a, const Rows& rows, int r) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < HD / 8; i++) {
    const float4 acc = total.acc[i * 32];
    const i64 col = i * 8 + (lane & 3) * 2;
    if (r < rows.end)
      *reinterpret_cast<unsigned*>(a.out + rows.head_of(a, r) * HD + col) =
          pack_bf16(__fdiv_rn(acc.x, total.l[0]), __fdiv_rn(acc.y, total.l[0]));
    if (r + 8 < rows.end)
      *reinterpret_cast<unsigned*>(a.out + rows.head_of(a, r + 8) * HD + col) =
          pack_bf16(__fdiv_rn(acc.z, total.l[1]), __fdiv_rn(acc.w, total.l[1]));
  }
}

template <int HD> __device__ __forceinline__ void attend_rows(const AttendArgs& a, const Rows& rows, bf16* shared) {
  using L = Layout<HD>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int newest = rows.position(min(rows.first + WARPS * 16 - 1, rows.end - 1));
  const int oldest = max(0, rows.position(rows.first) - (a.window - 1));
  const int first = oldest / TILE * TILE, end = newest + 1;
  load_queries<HD>(shared + L::QUERIES, a, rows, WARPS * 16, threadIdx.x, WARPS * 32);
  start_tile<HD>(shared + L::KEYS, a, rows, first, end, false);
  start_tile<HD>(shared + L::VALUES, a, rows, first, end, true);
  __syncthreads();
  Queries<HD> queries;
  queries.take(shared + L::QUERIES + warp * 16 * HD);
  __syncthreads();  // the totals may take the place of the queries
  const int r = rows.first + warp * 16 + (lane >> 2);
  const int position[2] = {rows.position(r), rows.position(r + 8)};
  Total<HD> total;
  total.acc = reinterpret_cast<float4*>(shared + L::TOTALS) + warp * (HD / 8) * 32 + lane;
  total.clear();
  Partial<HD> p;
  p.clear();
  for (int key = first, stage = 0; key < end; key += TILE, stage = (stage + 1) % L::STAGES) {
    if (L::STAGES == 2) {
      const int next = (stage ^ 1) * L::TILE_ELEMS;
      start_tile<HD>(shared + L::KEYS + next, a, rows, key + TILE, end, false);
      start_tile<HD>(shared + L::VALUES + next, a, rows, key + TILE, end, true);
      copy_wait<2>();
    } else {
      copy_wait<0>();
    }
    __syncthreads();
    const bf16* keys = shared + L::KEYS + stage * L::TILE_ELEMS;
    const bf16* values = shared + L::VALUES + stage * L::TILE_ELEMS;
    float s[TILE / 8][4];
#pragma unroll
    for (int j = 0; j < SLABS; j++) score_slab<HD>(s[j * 2], s[j * 2 + 1], queries, keys + j * SLAB * HD);
    softmax_tile<HD>(s, p, a, position, key);
#pragma unroll
    for (int j = 0; j < SLABS; j++) add_values<HD>(p, s[j * 2], s[j * 2 + 1], values + j * SLAB * HD);
    __syncthreads();  // all have read this stage
    if (L::STAGES == 1) {
      start_tile<HD>(shared + L::KEYS, a, rows, key + TILE, end, false);
      start_tile<HD>(shared + L::VALUES, a, rows, key + TILE, end, true);
    }
    if ((key + TILE) % SPAN == 0 || key + TILE >= end) {
      p.close();
      total.merge_in(p, a.scale);
      p.clear();
    }
  }
  copy_wait<0>();
  store_total<HD>(total, a, rows, r);
  __syncthreads();  // the next item's queries may take the place of the totals
}

template <int HD> __device__ __forceinline__ void attend_prefill(const AttendArgs& a) {
  DYNAMIC_SHARED(bf16, shared);
  const int count = *a.num_work * a.num_kv_heads;
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const int4 work = a.work[index / a.num_kv_heads];
    attend_rows<HD>(a, rows_of(a, work.x, index % a.num_kv_heads, work.y), shared);
  }
}

KERNEL(attend_prefill_16, AttendArgs, 128) { attend_prefill<16>(a); }
KERNEL(attend_prefill_32, AttendArgs, 128) { attend_prefill<32>(a); }
KERNEL(attend_prefill_64, AttendArgs, 128) { attend_prefill<64>(a); }
KERNEL(attend_prefill_96, AttendArgs, 128) { attend_prefill<96>(a); }
KERNEL(attend_prefill_128, AttendArgs, 128) { attend_prefill<128>(a); }
KERNEL(attend_prefill_256, AttendArgs, 128) { attend_prefill<256>(a); }
