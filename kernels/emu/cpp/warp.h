// Barriers and exchanges between the lanes of a warp.
#pragma once
#include "fiber.h"

#define threadIdx (cuemu::fiber->thread)
#define blockIdx (cuemu::block->index)
#define blockDim (cuemu::block->size)
#define gridDim (cuemu::block->grid)

namespace cuemu {

using Slots = unsigned char (*)[SLOT_BYTES];

// The lanes of `mask` that exist: the last warp of a block may be short.
inline unsigned existing(unsigned mask) {
  const int lanes = int(block->fibers.size()) - fiber->warp * 32;
  return lanes >= 32 ? mask : mask & ((1u << lanes) - 1);
}

// Deposits a value, meets the other lanes of `mask`, and gives what all of them deposited.
template <class T> Slots exchange(unsigned mask, const T& value) {
  static_assert(sizeof(T) <= SLOT_BYTES, "a slot is too small for this type");
  Slots slots = block->warps[fiber->warp].slots[fiber->round];
  memcpy(slots[fiber->lane], &value, sizeof value);
  fiber->round ^= 1;
  yield(AT_WARP_BARRIER, existing(mask));
  return slots;
}

template <class T> T read(Slots slots, int lane) {
  T value;
  memcpy(&value, slots[lane], sizeof value);
  return value;
}

}  // namespace cuemu

inline void __syncthreads() { cuemu::yield(cuemu::AT_BLOCK_BARRIER); }
inline void __syncwarp(unsigned mask = ~0u) { cuemu::yield(cuemu::AT_WARP_BARRIER, cuemu::existing(mask)); }

template <class T> T __shfl_sync(unsigned mask, T value, int source) {
  auto slots = cuemu::exchange(mask, value);
  return cuemu::read<T>(slots, source & 31);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int distance) {
  const int lane = cuemu::fiber->lane;
  auto slots = cuemu::exchange(mask, value);
  return cuemu::read<T>(slots, lane ^ distance);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int lane = cuemu::fiber->lane;
  auto slots = cuemu::exchange(mask, value);
  return cuemu::read<T>(slots, lane >= distance ? lane - distance : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, int distance) {
  const int lane = cuemu::fiber->lane;
  auto slots = cuemu::exchange(mask, value);
  return cuemu::read<T>(slots, lane + distance < 32 ? lane + distance : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  auto slots = cuemu::exchange(mask, vote);
  unsigned result = 0;
  for (int lane = 0; lane < 32; lane++)
    if (cuemu::existing(mask) >> lane & 1 && cuemu::read<bool>(slots, lane)) result |= 1u << lane;
  return result;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
