// Attention of few rows over a long past: a warp takes 16 rows and one span of 256 keys (decode; short chunks).
//
// attend_split: 32 threads; shared memory (16 + RING * 16) * head_dim * 2 bytes. Work items are (segment, first row,
// span, partial); item i of key head h is index i * num_kv_heads + h, and blocks of threads take indices in turn, so
// that the grid does not depend on the batch and a captured graph serves any lengths. `partial` is negative where the
// span is the only one of its rows: the result goes to `out` at once. Keys and values are read once from memory, 16
// bytes a lane, RING - 1 slabs ahead.
// attend_combine: 128 threads; work items are (segment, first row, first partial, number of partials); indices as
// above. Merges the partials of a row in order.
//
// sass attend_split_*: HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.M88.4 LDSM.16.MT88.4
// sass attend_combine_*: LDG.E.128
#include "attention.cuh"

constexpr int RING = 8;         // slabs of shared memory
constexpr int SLABS = TILE / SLAB;

template <int HD> struct SpanLoader {
  const AttendArgs& a;
  const Rows& rows;
  bf16* ring;
  int first_key, end;

  // Slab q of the span: tile q / 8, its four slabs of keys, then its four of values. An empty group keeps count.
  __device__ __forceinline__ void start(int q) const {
    const int position = first_key + q / (2 * SLABS) * TILE + q % SLABS * SLAB;
    const bool values = q % (2 * SLABS) >= SLABS;
    if (first_key + q / (2 * SLABS) * TILE < end)
      load_slab<HD>(slab(q), a, rows, position, end, values, threadIdx.x, 32);
    copy_commit();
  }
  // Waits for slab q; gives its place.
  __device__ __forceinline__ const bf16* wait(int q) const {
    copy_wait<RING - 2>();
    __syncwarp();
    return slab(q);
  }
  __device__ __forceinline__ bf16* slab(int q) const { return ring + q % RING * (SLAB * HD); }
};

template <int HD>
__device__ __forceinline__ void attend_span(Partial<HD>& p, const AttendArgs& a, const Rows& rows, bf16* shared,
                                            int first_key, int end) {
  const int lane = threadIdx.x & 31;
  const SpanLoader<HD> loader{a, rows, shared + SLAB * HD, first_key, end};
  __syncwarp();  // the item before may still be read
  for (int q = 0; q < RING - 1; q++) loader.start(q);
  load_queries<HD>(shared, a, rows, 16, lane, 32);
  __syncwarp();
  Queries<HD> queries;
  queries.take(shared);
  const int r = rows.first + (lane >> 2);
  const int position[2] = {rows.position(r), rows.position(r + 8)};
  p.clear();
  for (int tile = 0, q = 0; first_key + tile * TILE < end; tile++) {
    float s[TILE / 8][4];
#pragma unroll
    for (int j = 0; j < SLABS; j++, q++) {
      const bf16* keys = loader.wait(q);
      loader.start(q + RING - 1);
      score_slab<HD>(s[j * 2], s[j * 2 + 1], queries, keys);
    }
    softmax_tile<HD>(s, p, a, position, first_key + tile * TILE);
#pragma unroll
    for (int j = 0; j < SLABS; j++, q++) {
      const bf16* values = loader.wait(q);
      loader.start(q + RING - 1);
      add_values<HD>(p, s[j * 2], s[j * 2 + 1], values);
    }
  }
  copy_wait<0>();
  p.close();
}

template <int HD>
__device__ __forceinline__ void store_partial(const Partial<HD>& p, const AttendArgs& a, i64 index) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const i64 row = index * 16 + (lane >> 2) + half * 8;
    float* to = a.partials + row * HD + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
      *reinterpret_cast<float2*>(to + i * 8) = make_float2(p.acc[i][half * 2], p.acc[i][half * 2 + 1]);
    if ((lane & 3) == 0) a.partial_sums[row] = make_float2(p.m[half], p.l[half]);
  }
}

template <int HD>
__device__ __forceinline__ void store_result(const Partial<HD>& p, const AttendArgs& a, const Rows& rows) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = rows.first + (lane >> 2) + half * 8;
    if (r >= rows.end) break;
    bf16* to = a.out + rows.head_of(a, r) * HD + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
      *reinterpret_cast<unsigned*>(to + i * 8) =
          pack_bf16(__fdiv_rn(p.acc[i][half * 2], p.l[half]), __fdiv_rn(p.acc[i][half * 2 + 1], p.l[half]));
  }
}

template <int HD> __device__ __forceinline__ void attend_split(const AttendArgs& a) {
  DYNAMIC_SHARED(bf16, shared);
  const int count = *a.num_work * a.num_kv_heads;
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const int4 work = a.work[index / a.num_kv_heads];
    const Rows rows = rows_of(a, work.x, index % a.num_kv_heads, work.y);
    const int newest = rows.position(min(rows.first + 15, rows.end - 1));
    const int oldest = max(0, rows.position(rows.first) - (a.window - 1));
    const int first = max(work.z * SPAN, oldest / TILE * TILE), end = min(work.z * SPAN + SPAN, newest + 1);
    Partial<HD> p;
    attend_span<HD>(p, a, rows, shared, first, end);
    if (work.w >= 0)
      store_partial<HD>(p, a, (i64)work.w * a.num_kv_heads + rows.kv_head);
    else
      store_result<HD>(p, a, rows);
  }
}

template <int HD> __device__ __forceinline__ void attend_combine(const AttendArgs& a) {
  const int count = *a.num_work * a.num_kv_heads;
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const int4 work = a.work[index / a.num_kv_heads];
    const Rows rows = rows_of(a, work.x, index % a.num_kv_heads, work.y);
    for (int i = threadIdx.x; i < 16 * (HD / 4); i += blockDim.x) {
      const int row = i / (HD / 4), col = i % (HD / 4) * 4, r = rows.first + row;
      if (r >= rows.end) break;
      float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      float m = NEGATIVE_INFINITY, l = 0.0f;
#pragma unroll 4
      for (int span = 0; span < work.w; span++) {
        const i64 at = ((i64)(work.z + span) * a.num_kv_heads + rows.kv_head) * 16 + row;
        const float2 sums = a.partial_sums[at];
        const float4 next = *reinterpret_cast<const float4*>(a.partials + at * HD + col);
        const Merge f = merge(m, sums.x, a.scale);
        acc = make_float4(merged(f, acc.x, next.x), merged(f, acc.y, next.y), merged(f, acc.z, next.z),
                          merged(f, acc.w, next.w));
        m = f.m;
        l = merged(f, l, sums.y);
      }
      uint2 packed;
      packed.x = pack_bf16(__fdiv_rn(acc.x, l), __fdiv_rn(acc.y, l));
      packed.y = pack_bf16(__fdiv_rn(acc.z, l), __fdiv_rn(acc.w, l));
      *reinterpret_cast<uint2*>(a.out + rows.head_of(a, r) * HD + col) = packed;
    }
  }
}

KERNEL(attend_split_16, AttendArgs, 32) { attend_split<16>(a); }
KERNEL(attend_split_32, AttendArgs, 32) { attend_split<32>(a); }
KERNEL(attend_split_64, AttendArgs, 32) { attend_split<64>(a); }
KERNEL(attend_split_96, AttendArgs, 32) { attend_split<96>(a); }
KERNEL(attend_split_128, AttendArgs, 32) { attend_split<128>(a); }
KERNEL(attend_split_256, AttendArgs, 32) { attend_split<256>(a); }
KERNEL(attend_combine_16, AttendArgs, 128) { attend_combine<16>(a); }
KERNEL(attend_combine_32, AttendArgs, 128) { attend_combine<32>(a); }
KERNEL(attend_combine_64, AttendArgs, 128) { attend_combine<64>(a); }
KERNEL(attend_combine_96, AttendArgs, 128) { attend_combine<96>(a); }
KERNEL(attend_combine_128, AttendArgs, 128) { attend_combine<128>(a); }
KERNEL(attend_combine_256, AttendArgs, 128) { attend_combine<256>(a); }
