// What the stand-in libraries share: state, streams, error codes of the driver.
#pragma once
#include "cuemu.h"
#include <atomic>
#include <deque>
#include <mutex>

#define API extern "C" __attribute__((visibility("default"))) int

namespace standin {

typedef unsigned long long Pointer;
typedef unsigned long long u64_t;
typedef std::pair<const std::string, cuemu::Kernel> Named;

constexpr size_t MEMORY_BYTES = size_t(1) << 30;
constexpr char ANY[] = "*";
constexpr char IMAGE_MARK[] = "cuemu image";

enum Result {
  SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NOT_FOUND = 500,
  NOT_READY = 600, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900,
};

struct Graph { std::vector<std::function<void()>> ops; };

struct Stream {
  std::recursive_mutex lock;
  std::deque<std::function<void()>> queue;
  Graph* capture = nullptr;
};

// A mark stands where it was put last: passing where it stood before does not count.
struct Event {
  Stream* stream = nullptr;
  unsigned recorded = 0, reached = 0;
  bool done() const { return recorded == reached; }
};

struct State {
  std::mutex lock;
  int version = 13000, devices = 1;
  int contexts = 0;
  std::atomic<int> lost{SUCCESS};
  std::string failure;
  std::string fault_call;  // ANY for whichever call comes
  int fault_after = 0, fault_code = SUCCESS;
  std::string fault_met;   // the call that the fault was given to
  std::map<std::string, int> calls;
  cuemu::Order order;
  size_t memory = MEMORY_BYTES, used = 0;
  std::map<void*, size_t> allocations;
};

State& state();
int fault(const char* call);
int enter(const char* call);
int enqueue(void* stream, std::function<void()> op);

}  // namespace standin
