// Philox4x32-10: a random function of (key, counter); Salmon, Moraes, Dror, Shaw, SC 2011. The same words as
// `device::sampler::philox`, so that a seed gives the same text on every backend.
#pragma once
#include "common.cuh"

__device__ __forceinline__ uint4 philox4x32(uint2 key, uint4 counter) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    const unsigned high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}
