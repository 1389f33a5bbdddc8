// What the CUDA headers give a kernel for free: qualifiers, vector types, arithmetic intrinsics.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::max;
using std::min;

template <class To, class From> To cuemu_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit casts keep the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) { return cuemu_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return cuemu_bits<float>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned long long __float2ull_rn(float x) { return (unsigned long long)llrintf(x); }

// Fibers of a block take turns on one thread, so an atomic is an ordinary operation.
template <class T> T atomicAdd(T* p, T v) { T old = *p; *p = T(old + v); return old; }
template <class T> T atomicMax(T* p, T v) { T old = *p; *p = std::max(old, v); return old; }
template <class T> T atomicMin(T* p, T v) { T old = *p; *p = std::min(old, v); return old; }
template <class T> T atomicOr(T* p, T v) { T old = *p; *p = T(old | v); return old; }
template <class T> T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }
