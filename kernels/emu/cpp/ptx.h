// CPU twins of the PTX instructions that `common.cuh` wraps; fragment layouts are those of the PTX manual.
#pragma once
#include "warp.h"

inline unsigned short cuemu_to_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// cvt.rn.bf16x2.f32
inline unsigned pack_bf16(float low, float high) { return cuemu_to_bf16(low) | (unsigned)cuemu_to_bf16(high) << 16; }

// ex2.approx.ftz.f32
inline float exp2_approx(float x) { return exp2f(x); }

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: every lane deposits its A and B and computes its 4 outputs.
inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Fragment { unsigned a[4], b[2]; };
  const int lane = cuemu::fiber->lane;
  auto slots = cuemu::exchange(~0u, Fragment{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int row = lane >> 2, col = (lane & 3) * 2;
  const auto low = [](unsigned pair) { return __uint_as_float(pair << 16); };
  const auto high = [](unsigned pair) { return __uint_as_float(pair & 0xffff0000u); };
  for (int half = 0; half < 2; half++) {  // the k-th 8 of the 16 that are summed
    for (int pair = 0; pair < 4; pair++) {
      const auto left = cuemu::read<Fragment>(slots, row * 4 + pair);
      for (int j = 0; j < 2; j++) {
        const auto right = cuemu::read<Fragment>(slots, (col + j) * 4 + pair).b[half];
        for (int lower = 0; lower < 2; lower++) {
          const unsigned x = left.a[half * 2 + lower];
          d[lower * 2 + j] += low(x) * low(right);
          d[lower * 2 + j] += high(x) * high(right);
        }
      }
    }
  }
}

namespace cuemu {
inline void check_aligned(const void* address, const char* what) {
  if (reinterpret_cast<uintptr_t>(address) % 16) fail(std::string(what) + " of a misaligned address");
}
}  // namespace cuemu

// ldmatrix.sync.aligned.m8n8.x4(.trans).shared.b16: lane 8i+r names row r of matrix i.
template <bool TRANSPOSED> void load_matrices(unsigned (&to)[4], const void* row) {
  cuemu::check_aligned(row, "ldmatrix");
  const int lane = cuemu::fiber->lane, high = lane >> 2, low = (lane & 3) * 2;
  auto slots = cuemu::exchange(~0u, row);
  const auto element = [&](int matrix, int r, int c) {
    return (unsigned)cuemu::read<const unsigned short*>(slots, matrix * 8 + r)[c];
  };
  for (int i = 0; i < 4; i++)
    to[i] = TRANSPOSED ? element(i, low, high) | element(i, low + 1, high) << 16
                       : element(i, high, low) | element(i, high, low + 1) << 16;
  __syncwarp();  // the instruction is one: no lane goes on to overwrite what another has yet to read
}

// cp.async.cg.shared.global 16 bytes, `bytes` of them from memory and the rest zero. The copy is made when it is
// waited for, so that a wait that is missing shows.
inline void copy_async(void* to, const void* from, int bytes) {
  cuemu::check_aligned(to, "cp.async");
  if (bytes) cuemu::check_aligned(from, "cp.async");
  cuemu::fiber->issued.push_back({to, from, bytes});
}
inline void copy_commit() {
  cuemu::fiber->groups.push_back({});
  cuemu::fiber->groups.back().swap(cuemu::fiber->issued);
}
// cp.async.wait_group: all but the newest `PENDING` groups are done after it.
template <int PENDING> void copy_wait() {
  auto& groups = cuemu::fiber->groups;
  while (groups.size() > PENDING) {
    for (auto& copy : groups.front()) {
      if (copy.bytes) memcpy(copy.to, copy.from, copy.bytes);
      memset(static_cast<char*>(copy.to) + copy.bytes, 0, 16 - copy.bytes);
    }
    groups.erase(groups.begin());
  }
}
