// cuemu: CUDA C++ kernels as plain C++ on the CPU, to prove what they compute. Not for speed.
//
// It sees a missing barrier (in some order of warps), a barrier in a branch, an exchange without all its lanes, a
// read of shared memory or of an asynchronous copy before it is there, and with sanitizers every access out of
// bounds. It does not see races of memory order, bank conflicts, or the rounding of approximate instructions.
#pragma once
#include "ptx.h"

#define SHARED_ARRAY(Type, name, count)     \
  static const char name##_declaration = 0; \
  Type* name = static_cast<Type*>(cuemu::shared_memory(&name##_declaration, sizeof(Type) * (count)))
#define DYNAMIC_SHARED(Type, name) \
  Type* name = static_cast<Type*>(cuemu::shared_memory(&cuemu::block->dynamic_bytes, cuemu::block->dynamic_bytes))

namespace cuemu {

// A kernel takes one struct by value; the table that the stand-in driver finds kernels in by name.
struct Kernel {
  size_t args_bytes;
  std::function<std::function<void()>(const void* args)> bind;  // copies the arguments, as the driver does
};
std::map<std::string, Kernel>& kernels();

template <class Args> struct Register {
  Register(const char* name, void (*kernel)(Args)) {
    kernels()[name] = {sizeof(Args), [kernel](const void* args) -> std::function<void()> {
                         Args copied = *static_cast<const Args*>(args);
                         return [kernel, copied] { kernel(copied); };
                       }};
  }
};

}  // namespace cuemu

#define KERNEL(name, Args, threads)                         \
  static void name(Args a);                                 \
  static cuemu::Register<Args> name##_registered(#name, name); \
  static void name(Args a)
