// A token for each row of logits: bias, penalties, mask, temperature, top-k, top-p, min-p, then Gumbel-max.
//
// The same steps in the same order as `device::sampler`, which is the specification; whatever is not exact there too
// (exponentials and logarithms in f32) can turn a draw only where two tokens are within 1e-5 of each other. Raw
// logits stay as they are: rows that need changes work on a copy.
//
// grid (rows), 1024 threads. A row with an error says which; the others are not concerned.
#include "philox.cuh"
#include "select.cuh"

constexpr int SAMPLE_THREADS = 1024;
constexpr float SMALLEST_NOISE = -3.131f, LARGEST_NOISE = 22.874f;

struct SampleRow {
  int logits_row;
  float temperature;
  float top_p;
  float min_score;  // ln(min_p), or minus infinity
  unsigned top_k;   // 0 keeps all
  float presence;
  float frequency;
  float repetition;
  unsigned seed[2];
  unsigned position[2];
  int num_bias, first_bias;      // in `bias`
  int num_prompt, first_prompt;  // in `history`; only where a penalty needs it
  int num_output, first_output;
  int mask;      // first word in `masks`, or -1
  int num_top;   // alternatives to report, or -1 for no log-probabilities
};

struct Bias { int id; float bias; };
struct Top { int id; float logprob; };

enum SampleStatus { SAMPLED = 0, RAW_NOT_FINITE = 1, ADJUSTED_NOT_FINITE = 2, NOTHING_ALLOWED = 3 };

struct Sampled {
  int id;
  float logprob;
  int status;
  float value;  // the logit that is not finite; `id` is its token
};

struct SampleArgs {
  const float* logits;    // [.., vocab]
  float* adjusted;        // [grid, vocab]
  unsigned* counts;       // [grid, vocab], zero before and after
  const SampleRow* rows;  // [grid]
  const Bias* bias;
  const int* history;     // a token that the host does not know is ~i: the i-th of `before`
  const unsigned* masks;
  Sampled* out;           // [grid]
  Top* tops;              // [grid, max_top]
  int* drawn;             // [grid]: the ids again, for the next step's embedding
  const int* before;      // the ids that the step before drew
  int vocab;
  int max_top;
};

// Numbers in a 64-bit order: larger value first, then the lower id.
__device__ __forceinline__ u64 rank_of(float value, int id) { return (u64)ordered(value) << 32 | ~(unsigned)id; }

__device__ __forceinline__ u64 block_max(u64 x, SelectShared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.sum = 0;
  __syncthreads();
  for (int distance = 16; distance > 0; distance >>= 1) x = max(x, __shfl_xor_sync(0xffffffffu, x, distance));
  if ((threadIdx.x & 31) == 0) atomicMax(&s.sum, x);
  __syncthreads();
  return s.sum;
}

// A token that stands more than once in the list gets its biases in the list's order, from the first one's thread.
__device__ __forceinline__ void add_bias(float* logits, const Bias* bias, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    bool first = true;
    for (int j = 0; j < i; j++) first &= bias[j].id != bias[i].id;
    if (!first) continue;
    float x = logits[bias[i].id];
    for (int j = i; j < count; j++)
      if (bias[j].id == bias[i].id) x = __fadd_rn(x, bias[j].bias);
    logits[bias[i].id] = x;
  }
}

constexpr unsigned IN_PROMPT = 0x80000000u;

// Counts, then whoever takes a token's count first applies its penalties and leaves zero behind.
__device__ __forceinline__ void penalise(float* logits, unsigned* counts, const SampleRow& row, const SampleArgs& a) {
  const int* prompt = a.history + row.first_prompt;
  const auto output = [&](int i) {
    const int id = a.history[row.first_output + i];
    return id < 0 ? a.before[~id] : id;
  };
  for (int i = threadIdx.x; i < row.num_prompt; i += blockDim.x) atomicOr(&counts[prompt[i]], IN_PROMPT);
  for (int i = threadIdx.x; i < row.num_output; i += blockDim.x) atomicAdd(&counts[output(i)], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < row.num_prompt + row.num_output; i += blockDim.x) {
    const int id = i < row.num_prompt ? prompt[i] : output(i - row.num_prompt);
    const unsigned count = atomicExch(&counts[id], 0u);
    if (!count) continue;
    float x = logits[id];
    if (row.repetition != 1.0f) x = x < 0.0f ? __fmul_rn(x, row.repetition) : __fdiv_rn(x, row.repetition);
    const unsigned drawn = count & ~IN_PROMPT;
    if (drawn && (row.presence != 0.0f || row.frequency != 0.0f))
      x = __fsub_rn(x, __fadd_rn(__fmul_rn((float)drawn, row.frequency), row.presence));
    logits[id] = x;
  }
}

// The lowest id whose logit is not finite, or -1.
__device__ __forceinline__ int first_not_finite(const float* logits, int vocab, SelectShared& s) {
  u64 found = 0;
  for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
    const bool finite = (__float_as_uint(logits[id]) & 0x7f800000u) != 0x7f800000u;
    if (!finite) found = max(found, (u64)~(unsigned)id);
  }
  found = block_max(found, s);
  return found ? (int)~(unsigned)found : -1;
}

__device__ __forceinline__ void forbid(float* logits, const unsigned* mask, int vocab) {
  for (int id = threadIdx.x; id < vocab; id += blockDim.x)
    if (!(mask[id / 32] >> (id % 32) & 1u)) logits[id] = NEGATIVE_INFINITY;
}

__device__ __forceinline__ u64 best_of(const float* logits, int vocab, SelectShared& s) {
  u64 best = 0;
  float mine = NEGATIVE_INFINITY;
  for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
    mine = fmaxf(mine, logits[id]);
    best = max(best, rank_of(logits[id], id));
  }
  best = block_max(best, s);
  s.maxima[threadIdx.x] = mine;  // read by `lower_bound` after a barrier
  return best;
}

// A logit that at least k tokens reach: the k-th largest of the threads' own maxima. Found by counting.
__device__ __forceinline__ float lower_bound(unsigned k, SelectShared& s) {
  if (k > blockDim.x) return NEGATIVE_INFINITY;
  __syncthreads();
  const float mine = s.maxima[threadIdx.x];
  unsigned above = 0;
  for (int i = 0; i < (int)blockDim.x; i++) above += s.maxima[i] > mine || (s.maxima[i] == mine && i < (int)threadIdx.x);
  if (above == k - 1) s.rest = ordered(mine);
  __syncthreads();
  const float bound = from_ordered((unsigned)s.rest);
  __syncthreads();
  return bound;
}

// The tokens from `least` on as a list, if they fit.
template <class In>
__device__ __forceinline__ Source shortlist(const float* logits, int vocab, In in, SelectShared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  const Source all{logits, vocab, nullptr, 0};
  all.each([&](Candidate c) {
    if (!in(from_ordered(c.key))) return;
    const int at = atomicAdd(&s.count, 1);
    if (at < MAX_LISTED) s.list[at] = c;
  });
  __syncthreads();
  return s.count <= MAX_LISTED ? Source{logits, vocab, s.list, s.count} : all;
}

// Where top-k and top-p end, and a source that holds all they keep.
struct Kept { Source source; Border border; };

__device__ Kept filter(const float* logits, int vocab, const SampleRow& row, const Scale& scale, SelectShared& s) {
  Kept kept{Source{logits, vocab, nullptr, 0}, keep_all()};
  const bool by_count = row.top_k > 0 && row.top_k < (unsigned)vocab, by_mass = row.top_p < 1.0f;
  const MassWeight mass{scale};
  if (by_count) {
    const float least = lower_bound(row.top_k, s);
    kept.source = shortlist(logits, vocab, [&](float x) { return x >= least; }, s);
    kept.border = select(kept.source, row.top_k, kept.border, CountWeight(), s);
  }
  if (!by_mass) return kept;
  u64 total = 0;
  kept.source.each([&](Candidate c) { if (kept.border.keeps(c)) total += mass(c); });
  total = block_sum_whole(total, s);
  if (!by_count) {
    // All that lie below this share a mass of at most 1 - p, so the prefix that reaches p ends before them.
    const u64 least = (u64)((1.0 - (double)row.top_p) * (double)total / vocab * (1.0 - 1e-6));
    kept.source = shortlist(logits, vocab, [&](float x) { return scale.mass(x) >= least; }, s);
  }
  const u64 wanted = max((u64)1, (u64)ceil((double)row.top_p * (double)total));
  kept.border = select(kept.source, min(wanted, total), kept.border, mass, s);
  return kept;
}

// g = -ln(-ln(1 - v)) with v = (word + 1/2) / 2^32, accurate at both ends.
__device__ __forceinline__ float gumbel(unsigned word) {
  const float v = ((float)word + 0.5f) * 2.3283064365386963e-10f;
  const float rest = ((float)~word + 0.5f) * 2.3283064365386963e-10f;
  const float e = word < 0x80000000u ? -log1pf(-v) : -logf(rest);
  return -logf(e);
}

__device__ __forceinline__ unsigned word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// The winner of the race among what is kept, or 0 for none. Four neighbours share one call of the generator.
__device__ __forceinline__ u64 race(const Kept& kept, const SampleRow& row, const Scale& scale, SelectShared& s) {
  const uint2 seed{row.seed[0], row.seed[1]};
  const auto words_of = [&](int id) {
    return philox4x32(seed, make_uint4(row.position[0], row.position[1], (unsigned)id / 4, 0));
  };
  const auto total = [&](Candidate c, const uint4& words) {
    return rank_of(scale.score(from_ordered(c.key)) + gumbel(word_of(words, c.id % 4)), c.id);
  };
  const auto runs = [&](Candidate c) {
    // Whoever leads has at least the smallest noise, so nobody further behind than the largest can win.
    const float score = scale.score(from_ordered(c.key));
    return kept.border.keeps(c) && score >= row.min_score && score >= SMALLEST_NOISE - LARGEST_NOISE;
  };
  u64 best = 0;
  if (kept.source.list) {
    kept.source.each([&](Candidate c) { if (runs(c)) best = max(best, total(c, words_of(c.id))); });
    return block_max(best, s);
  }
  for (int first = threadIdx.x * 4; first < kept.source.vocab; first += blockDim.x * 4) {
    const uint4 words = words_of(first);
    for (int id = first; id < min(first + 4, kept.source.vocab); id++) {
      const Candidate c{ordered(kept.source.logits[id]), id};
      if (runs(c)) best = max(best, total(c, words));
    }
  }
  return block_max(best, s);
}

// Log-probabilities of the raw distribution: of the drawn token and of the `num_top` most likely, best first.
__device__ void report(const SampleArgs& a, const float* logits, int num_top, Sampled& out, SelectShared& s) {
  const u64 best = best_of(logits, a.vocab, s);
  const float least = num_top > 0 ? lower_bound(num_top, s) : 0.0f;
  const Scale scale{from_ordered((unsigned)(best >> 32)), 1.0f};
  u64 total = 0;
  for (int id = threadIdx.x; id < a.vocab; id += blockDim.x) total += scale.mass(logits[id]);
  total = block_sum_whole(total, s);
  const double log_sum = (double)scale.max + log((double)total / (double)MASS_UNIT);
  out.logprob = (float)((double)logits[out.id] - log_sum);
  num_top = min(num_top, a.vocab);
  if (num_top <= 0) return;
  const Source source = shortlist(logits, a.vocab, [&](float x) { return x >= least; }, s);
  const Border border = select(source, num_top, keep_all(), CountWeight(), s);
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  // At most max_top are kept; each finds its place by counting those before it.
  u64* ranks = s.bins;
  source.each([&](Candidate c) {
    if (border.keeps(c)) ranks[atomicAdd(&s.count, 1)] = (u64)c.key << 32 | ~(unsigned)c.id;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < num_top; i += blockDim.x) {
    int place = 0;
    for (int j = 0; j < num_top; j++) place += ranks[j] > ranks[i];
    const float x = from_ordered((unsigned)(ranks[i] >> 32));
    a.tops[(i64)blockIdx.x * a.max_top + place] = Top{(int)~(unsigned)ranks[i], (float)((double)x - log_sum)};
  }
}

// The row's logits after bias, penalties and mask: the raw ones where nothing changes them.
__device__ const float* adjust(const SampleArgs& a, const SampleRow& row, const float* raw, Sampled& out,
                               SelectShared& s) {
  const bool penalties = row.num_prompt + row.num_output > 0;
  if (!row.num_bias && !penalties && row.mask < 0) return raw;
  float* logits = a.adjusted + (i64)blockIdx.x * a.vocab;
  for (int id = threadIdx.x; id < a.vocab; id += blockDim.x) logits[id] = raw[id];
  __syncthreads();
  add_bias(logits, a.bias + row.first_bias, row.num_bias);
  __syncthreads();
  if (penalties) penalise(logits, a.counts + (i64)blockIdx.x * a.vocab, row, a);
  __syncthreads();
  const int bad = first_not_finite(logits, a.vocab, s);
  if (bad >= 0) out = Sampled{bad, 0.0f, ADJUSTED_NOT_FINITE, logits[bad]};
  __syncthreads();
  if (row.mask >= 0) forbid(logits, a.masks + row.mask, a.vocab);
  __syncthreads();
  return logits;
}

__device__ Sampled sample_row(const SampleArgs& a, const SampleRow& row, SelectShared& s) {
  const float* raw = a.logits + (i64)row.logits_row * a.vocab;
  Sampled out{0, 0.0f, SAMPLED, 0.0f};
  const int bad = first_not_finite(raw, a.vocab, s);
  if (bad >= 0) return Sampled{bad, 0.0f, RAW_NOT_FINITE, raw[bad]};
  const float* logits = adjust(a, row, raw, out, s);
  if (out.status != SAMPLED) return out;
  const u64 best = best_of(logits, a.vocab, s);
  if ((unsigned)(best >> 32) <= ORDERED_MINUS_INFINITY) return Sampled{0, 0.0f, NOTHING_ALLOWED, 0.0f};
  out.id = (int)~(unsigned)best;
  if (row.temperature > 0.0f) {
    const Scale scale{from_ordered((unsigned)(best >> 32)), row.temperature};
    const Kept kept = filter(logits, a.vocab, row, scale, s);
    const u64 winner = race(kept, row, scale, s);
    if (winner) out.id = (int)~(unsigned)winner;
  }
  if (row.num_top >= 0) report(a, raw, row.num_top, out, s);
  return out;
}

KERNEL(sample, SampleArgs, SAMPLE_THREADS) {
  SHARED_ARRAY(SelectShared, shared, 1);
  const Sampled out = sample_row(a, a.rows[blockIdx.x], shared[0]);
  if (threadIdx.x > 0) return;
  a.out[blockIdx.x] = out;
  a.drawn[blockIdx.x] = out.id;
}
