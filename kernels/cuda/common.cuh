// What all kernels share. The same text is compiled by NVRTC, by nvcc, and (with -DCUEMU) as C++ for the CPU.
//
// No CUDA header is included: NVRTC needs nothing but these files. Every PTX instruction stands behind one inline
// function here, whose CPU twin is in emu/cpp/ptx.h.
#pragma once
#ifdef CUEMU
#include "cuemu.h"
#else
// A kernel takes one struct `a` by value; its twin in Rust is checked against its size when a module is loaded.
#define KERNEL(name, Args, threads) extern "C" __global__ void __launch_bounds__(threads) name(const Args a)
#define SHARED_ARRAY(Type, name, count) __shared__ __align__(16) Type name[count]
#define DYNAMIC_SHARED(Type, name)                           \
  extern __shared__ __align__(128) unsigned char dynamic_shared[]; \
  Type* name = reinterpret_cast<Type*>(dynamic_shared)

// Rounds to nearest even; the first is the lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// d[16x8] += a[16x16] * b[16x8]
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Four 8x8 matrices of 16-bit elements; lane 8i+r names row r of matrix i.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

// 16 bytes to shared memory, of which `bytes` (0 or 16) come from memory and the rest are zero.
__device__ __forceinline__ void copy_async(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

struct bf16 { unsigned short bits; };
typedef long long i64;
typedef unsigned long long u64;

#define NEGATIVE_INFINITY __uint_as_float(0xff800000u)

__device__ __forceinline__ bf16 to_bf16(float x) { return bf16{(unsigned short)(pack_bf16(x, 0.0f) & 0xffffu)}; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float low_half(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// Eight consecutive bf16 values, read or written as 16 bytes.
struct Eight {
  float x[8];
};
__device__ __forceinline__ Eight unpack8(uint4 v) {
  return Eight{{low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y), low_half(v.z), high_half(v.z),
                low_half(v.w), high_half(v.w)}};
}
__device__ __forceinline__ uint4 pack8(const Eight& v) {
  return make_uint4(pack_bf16(v.x[0], v.x[1]), pack_bf16(v.x[2], v.x[3]), pack_bf16(v.x[4], v.x[5]),
                    pack_bf16(v.x[6], v.x[7]));
}
__device__ __forceinline__ Eight load8(const float* from) {
  const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  return Eight{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ Eight load8(const bf16* from) { return unpack8(*reinterpret_cast<const uint4*>(from)); }
__device__ __forceinline__ void store8(float* to, const Eight& v) {
  reinterpret_cast<float4*>(to)[0] = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v.x[4], v.x[5], v.x[6], v.x[7]);
}
__device__ __forceinline__ void store8(bf16* to, const Eight& v) { *reinterpret_cast<uint4*>(to) = pack8(v); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// The sum over a block of whole warps, in an order that depends on the block's size only; every thread gets it.
// May be called again only after a barrier of the block.
__device__ __forceinline__ float block_sum(float x) {
  SHARED_ARRAY(float, partial, 32);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, num_warps = blockDim.x >> 5;
  x = warp_sum(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < num_warps ? partial[lane] : 0.0f);
}
