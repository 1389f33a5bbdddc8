// Top-k and top-p without a sort: which prefix of the tokens, ordered by (logit descending, id ascending), is kept.
//
// The prefix is described by its last token (`Border`). It is found by a radix search: four histograms of 8 bits of
// the logit's ordered bits, from the highest down, then four of the id where ties straddle the border. A histogram
// holds counts (top-k) or masses (top-p) as whole numbers, so the order of the additions does not matter.
#pragma once
#include "common.cuh"

constexpr int BINS = 256;
constexpr int MAX_LISTED = 2048;

// Masses are whole multiples of 2^-44: a vocabulary of 2^18 tokens cannot overflow 64 bits.
constexpr float MASS_UNIT = 17592186044416.0f;

// Unsigned order of floats; -0 and 0 are equal.
__device__ __forceinline__ unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
constexpr unsigned ORDERED_MINUS_INFINITY = 0x007fffffu;

struct Candidate { unsigned key; int id; };

// The last token that is kept.
struct Border {
  unsigned key;
  int id;
  __device__ __forceinline__ bool keeps(Candidate c) const { return c.key > key || (c.key == key && c.id <= id); }
};
__device__ __forceinline__ Border keep_all() { return Border{ORDERED_MINUS_INFINITY, -1}; }

// From logits to scores and masses, as `device::sampler` defines them.
struct Scale {
  float max, temperature;
  __device__ __forceinline__ float score(float logit) const { return __fdiv_rn(__fsub_rn(logit, max), temperature); }
  __device__ __forceinline__ u64 mass(float logit) const {
    return __float2ull_rn(exp2_approx(1.44269504f * score(logit)) * MASS_UNIT);
  }
};

struct CountWeight {
  __device__ __forceinline__ u64 operator()(Candidate) const { return 1; }
};
struct MassWeight {
  Scale scale;
  __device__ __forceinline__ u64 operator()(Candidate c) const { return scale.mass(from_ordered(c.key)); }
};

// The tokens in question: the whole vocabulary, or a list that holds every token that can still be kept.
struct Source {
  const float* logits;
  int vocab;
  const Candidate* list;  // null where the vocabulary did not fit
  int listed;

  // Calls f for each allowed token, a share of them in each thread.
  template <class F> __device__ __forceinline__ void each(F f) const {
    if (list) {
      for (int i = threadIdx.x; i < listed; i += blockDim.x) f(list[i]);
    } else {
      for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
        const unsigned key = ordered(logits[id]);
        if (key > ORDERED_MINUS_INFINITY) f(Candidate{key, id});
      }
    }
  }
};

struct SelectShared {
  u64 bins[BINS];
  u64 rest;       // what the chosen bin must still give
  int bin;
  u64 sum;
  int count;
  float maxima[1024];
  Candidate list[MAX_LISTED];
};

__device__ __forceinline__ u64 block_sum_whole(u64 x, SelectShared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.sum = 0;
  __syncthreads();
  for (int distance = 16; distance > 0; distance >>= 1) x += __shfl_xor_sync(0xffffffffu, x, distance);
  if ((threadIdx.x & 31) == 0 && x) atomicAdd(&s.sum, x);
  __syncthreads();
  return s.sum;
}

// The highest bin such that it and all above hold at least `wanted`, by the first warp. Without one, the lowest.
__device__ __forceinline__ void find_bin(SelectShared& s, u64 wanted) {
  const int lane = threadIdx.x;
  u64 mine = 0;
  for (int i = 0; i < 8; i++) mine += s.bins[BINS - 1 - (lane * 8 + i)];
  u64 upto = mine;
  for (int distance = 1; distance < 32; distance <<= 1) {
    const u64 other = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += other;
  }
  const unsigned reached = __ballot_sync(0xffffffffu, upto >= wanted);
  const int owner = reached ? __ffs(reached) - 1 : 31;
  if (lane != owner) return;
  u64 above = upto - mine;
  int bin = BINS - 1 - lane * 8;
  for (int i = 0; i < 7 && above + s.bins[bin] < wanted; i++) above += s.bins[bin--];
  s.bin = bin;
  s.rest = wanted - above;
}

// One radix search over `code(c)` of the candidates that `in` admits: the code at which the weights, added from the
// highest code down, reach `wanted`; `s.rest` is what tokens of exactly that code must still give.
template <class Code, class In, class Weight>
__device__ unsigned search(const Source& source, u64 wanted, Code code, In in, Weight weight, SelectShared& s) {
  unsigned prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) s.bins[i] = 0;
    __syncthreads();
    source.each([&](Candidate c) {
      const unsigned x = code(c);
      const bool same = shift == 24 || x >> (shift + 8) == prefix >> (shift + 8);
      if (same && in(c)) atomicAdd(&s.bins[x >> shift & 255u], weight(c));
    });
    __syncthreads();
    if (threadIdx.x < 32) find_bin(s, wanted);
    __syncthreads();
    prefix |= (unsigned)s.bin << shift;
    wanted = s.rest;
  }
  return prefix;
}

// The shortest prefix of the tokens before `before` whose weights reach `wanted` (at least 1).
template <class Weight>
__device__ Border select(const Source& source, u64 wanted, Border before, Weight weight, SelectShared& s) {
  const unsigned key = search(source, wanted, [](Candidate c) { return c.key; },
                              [&](Candidate c) { return before.keeps(c); }, weight, s);
  // Tokens of one logit weigh the same: how many of them are needed, lowest ids first.
  const u64 each = weight(Candidate{key, 0});
  const u64 needed = each ? (s.rest + each - 1) / each : 1;
  __syncthreads();
  const unsigned id = search(source, needed, [](Candidate c) { return ~(unsigned)c.id; },
                             [&](Candidate c) { return c.key == key && before.keeps(c); }, CountWeight(), s);
  return Border{key, (int)~id};
}
