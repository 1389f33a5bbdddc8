// One fiber for each CUDA thread of a block; blocks run one after another, on one CPU thread.
//
// A warp runs until all its lanes wait at a block barrier or are done, then the next warp runs. The order of warps
// and of lanes within a warp is chosen by `Order`, so that a missing barrier shows in some order. A barrier that
// cannot complete, or a misuse that a device would not report, ends the launch with a text in `failure()`.
#pragma once
#include "types.h"
#include <functional>
#include <map>
#include <random>
#include <string>
#include <sys/mman.h>
#include <vector>

extern "C" void cuemu_switch(void** save, void* load);
#if defined(__x86_64__)
asm(".text\n.weak cuemu_switch\n.type cuemu_switch,@function\ncuemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\nmovq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size cuemu_switch,.-cuemu_switch\n");
#elif defined(__aarch64__)
asm(".text\n.weak cuemu_switch\n.type cuemu_switch,@function\ncuemu_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\nldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\n"
    "ldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\n"
    "ldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n"
    ".size cuemu_switch,.-cuemu_switch\n");
#else
#error "cuemu: this architecture needs a context switch"
#endif

namespace cuemu {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr int SLOT_BYTES = 32;

// An asynchronous copy that was issued and not yet waited for.
struct Copy { void* to; const void* from; int bytes; };

enum Wait { RUNNABLE, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  dim3 thread;
  int lane = 0, warp = 0;
  Wait wait = RUNNABLE;
  unsigned mask = 0;  // lanes that a warp barrier waits for
  int round = 0;      // which of the two exchange buffers comes next
  std::vector<Copy> issued;
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
};

// Two buffers: a lane may start the next exchange while another still reads this one.
struct Warp { unsigned char slots[2][32][SLOT_BYTES]; };

struct Block {
  dim3 index, size, grid;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::map<const void*, void*> shared;  // by the address that stands for the declaration
  size_t dynamic_bytes = 0;
  std::function<void()> body;
  void* scheduler = nullptr;
  std::string failure;
};

// The order in which warps, and lanes within them, take their turns.
struct Order { enum Kind { FORWARD, REVERSE, RANDOM } kind = FORWARD; unsigned seed = 1; };

inline thread_local Block* block = nullptr;
inline thread_local Fiber* fiber = nullptr;

inline void yield(Wait wait, unsigned mask = 0) {
  fiber->wait = wait;
  fiber->mask = mask;
  cuemu_switch(&fiber->stack_pointer, block->scheduler);
}

// Ends the launch: this fiber never runs again, and the scheduler stops at the next turn.
[[noreturn]] inline void fail(const std::string& why) {
  char where[128];
  snprintf(where, sizeof where, " (block %u,%u,%u thread %u)", block->index.x, block->index.y, block->index.z,
           fiber->warp * 32 + fiber->lane);
  if (block->failure.empty()) block->failure = why + where;
  for (;;) yield(DONE);
}

inline void fiber_main() {
  block->body();
  for (;;) yield(DONE);
}

// Shared memory of a declaration: allocated on its own so that the address sanitizer sees its ends, and filled
// with a pattern so that what was never written is not silently zero.
inline void* shared_memory(const void* declaration, size_t bytes) {
  auto& memory = block->shared[declaration];
  if (!memory) {
    memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
    memset(memory, 0xCD, bytes);
  }
  return memory;
}

inline void prepare(Fiber& f) {
  auto top = (reinterpret_cast<uintptr_t>(f.stack) + STACK_BYTES) & ~uintptr_t(15);
#if defined(__x86_64__)
  auto** sp = reinterpret_cast<void**>(top - 16);
  sp[0] = reinterpret_cast<void*>(fiber_main);
  sp[1] = nullptr;
  sp -= 6;
  std::fill(sp, sp + 6, nullptr);
#else
  auto** sp = reinterpret_cast<void**>(top - 160);
  memset(sp, 0, 160);
  sp[11] = reinterpret_cast<void*>(fiber_main);
#endif
  f.stack_pointer = sp;
  f.wait = RUNNABLE;
  f.round = 0;
  f.issued.clear();
  f.groups.clear();
}

// Lets every warp barrier go whose lanes have all arrived; whether one did.
inline bool release_warp_barriers(int first, int end) {
  auto& fibers = block->fibers;
  bool released = false;
  for (int i = first; i < end; i++) {
    if (fibers[i].wait != AT_WARP_BARRIER) continue;
    const unsigned mask = fibers[i].mask;
    bool all = true;
    for (int j = first; j < end; j++)
      if (mask >> (j - first) & 1) all &= fibers[j].wait == AT_WARP_BARRIER && fibers[j].mask == mask;
    if (!all) continue;
    for (int j = first; j < end; j++)
      if (mask >> (j - first) & 1) fibers[j].wait = RUNNABLE;
    released = true;
  }
  return released;
}

inline void run_warp(int warp, const std::vector<int>& lanes) {
  auto& fibers = block->fibers;
  const int first = warp * 32, end = std::min<int>(fibers.size(), first + 32);
  do {
    for (int lane : lanes) {
      const int i = first + lane;
      if (i >= end || fibers[i].wait != RUNNABLE) continue;
      fiber = &fibers[i];
      cuemu_switch(&block->scheduler, fiber->stack_pointer);
      if (!block->failure.empty()) return;
    }
  } while (release_warp_barriers(first, end));
}

inline std::string lanes_waiting() {
  std::string map;
  for (auto& f : block->fibers) map += "rBWd"[f.wait];
  return map;
}

// One block to its end; the text of what went wrong, or nothing.
inline std::string run_block(const std::vector<int>& warps, const std::vector<int>& lanes) {
  for (auto& f : block->fibers) prepare(f);
  for (;;) {
    for (int warp : warps) {
      run_warp(warp, lanes);
      if (!block->failure.empty()) return block->failure;
    }
    int done = 0, at_barrier = 0;
    for (auto& f : block->fibers) {
      done += f.wait == DONE;
      at_barrier += f.wait == AT_BLOCK_BARRIER;
    }
    const int count = int(block->fibers.size());
    if (done == count) return "";
    if (done + at_barrier != count) return "a warp barrier never completes: " + lanes_waiting();
    if (done) return "__syncthreads() is reached by some threads only: " + lanes_waiting();
    for (auto& f : block->fibers) f.wait = RUNNABLE;
  }
}

inline std::vector<char*>& stacks(size_t count) {
  static thread_local std::vector<char*> pool;
  while (pool.size() < count) {
    void* memory = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    pool.push_back(static_cast<char*>(memory));
  }
  return pool;
}

// Runs `body` for each thread of the grid; the text of the first failure, or nothing.
inline std::string launch(dim3 grid, dim3 size, size_t dynamic_bytes, Order order, std::function<void()> body) {
  Block b;
  b.grid = grid;
  b.size = size;
  b.dynamic_bytes = dynamic_bytes;
  b.body = std::move(body);
  const int count = size.x * size.y * size.z, num_warps = (count + 31) / 32;
  auto& pool = stacks(count);
  b.fibers.resize(count);
  b.warps.resize(num_warps);
  for (int i = 0; i < count; i++) {
    auto& f = b.fibers[i];
    f.stack = pool[i];
    f.lane = i & 31;
    f.warp = i >> 5;
    f.thread = dim3(i % size.x, i / size.x % size.y, i / (size.x * size.y));
  }
  std::vector<int> warps(num_warps), lanes(32);
  for (int i = 0; i < num_warps; i++) warps[i] = i;
  for (int i = 0; i < 32; i++) lanes[i] = i;
  if (order.kind == Order::REVERSE) {
    std::reverse(warps.begin(), warps.end());
    std::reverse(lanes.begin(), lanes.end());
  }
  std::mt19937 random(order.seed);
  block = &b;
  std::string failure;
  for (unsigned i = 0; i < grid.x * grid.y * grid.z && failure.empty(); i++) {
    if (order.kind == Order::RANDOM) {
      std::shuffle(warps.begin(), warps.end(), random);
      std::shuffle(lanes.begin(), lanes.end(), random);
    }
    b.index = dim3(i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y));
    failure = run_block(warps, lanes);
    for (auto& memory : b.shared) free(memory.second);
    b.shared.clear();
  }
  block = nullptr;
  fiber = nullptr;
  return failure;
}

}  // namespace cuemu
