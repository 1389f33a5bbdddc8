// A stand-in for libcuda: the entry points that our driver layer names, with kernels run by cuemu.
//
// A stream is a queue that runs only when somebody waits for it, on the waiter's thread: whoever reads a result, or
// reuses a staging buffer, without having waited sees stale bytes, as on a device. A kernel that fails loses the
// device: every later call says so, until the context is given back. `standin_*` are for tests.
#include "standin.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>

std::map<std::string, cuemu::Kernel>& cuemu::kernels() {
  static std::map<std::string, cuemu::Kernel> all;
  return all;
}

namespace standin {

State& state() {
  static State one;
  return one;
}

// The result of an entry point that answers on a lost device too: a fault that a test asked for, or success.
int fault(const char* call) {
  State& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  s.calls[call]++;
  if ((s.fault_call != call && s.fault_call != ANY) || s.fault_after-- != 0) return SUCCESS;
  if (s.fault_code == LAUNCH_FAILED) s.lost = s.fault_code;
  s.fault_met = call;
  return s.fault_code;
}

// The result of an entry point: a fault, or a device that is lost, or success.
int enter(const char* call) {
  if (int error = fault(call)) return error;
  return state().lost;
}

int enqueue(void* handle, std::function<void()> op) {
  auto* stream = static_cast<Stream*>(handle);
  std::lock_guard<std::recursive_mutex> hold(stream->lock);
  if (stream->capture)
    stream->capture->ops.push_back(std::move(op));
  else
    stream->queue.push_back(std::move(op));
  return SUCCESS;
}

void drain(Stream* stream, const Event* until) {
  std::lock_guard<std::recursive_mutex> hold(stream->lock);
  while (!stream->queue.empty() && !(until && until->done()) && !state().lost) {
    auto op = std::move(stream->queue.front());
    stream->queue.pop_front();
    op();
  }
}

static cuemu::Order order_of(State& s) {
  std::lock_guard<std::mutex> hold(s.lock);
  return s.order;
}

// A launch as an operation of a stream.
static std::function<void()> launch(const std::string& name, dim3 grid, dim3 size, unsigned shared, std::function<void()> body) {
  return [=] {
    const std::string failure = cuemu::launch(grid, size, shared, order_of(state()), body);
    if (failure.empty()) return;
    fprintf(stderr, "cuemu: %s: %s\n", name.c_str(), failure.c_str());
    std::lock_guard<std::mutex> hold(state().lock);
    state().lost = LAUNCH_FAILED;
    state().failure = name + ": " + failure;
  };
}

}  // namespace standin

using namespace standin;

// What only gives back (free, destroy, release, unload) does not fail: nobody could do anything about it.
API cuInit(unsigned) { return fault("cuInit"); }
API cuDriverGetVersion(int* version) { *version = state().version; return fault("cuDriverGetVersion"); }
API cuDeviceGetCount(int* count) { *count = state().devices; return fault("cuDeviceGetCount"); }
API cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < state().devices ? fault("cuDeviceGet") : INVALID_DEVICE;
}
API cuDeviceGetName(char* name, int size, int) { snprintf(name, size, "cuemu"); return fault("cuDeviceGetName"); }
API cuDeviceGetAttribute(int* value, int attribute, int) {
  if (int error = fault("cuDeviceGetAttribute")) return error;
  switch (attribute) {
    case 16: *value = 4; break;            // multiprocessors
    case 75: *value = 9; break;            // compute capability
    case 76: *value = 0; break;
    case 97: *value = 227 << 10; break;    // shared memory of a block, opted in
    default: *value = 0;
  }
  return SUCCESS;
}

API cuDevicePrimaryCtxRetain(void** context, int) {
  if (int error = fault("cuDevicePrimaryCtxRetain")) return error;
  State& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  if (s.contexts++ == 0) s.lost = SUCCESS;
  *context = &s;
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int) {
  std::lock_guard<std::mutex> hold(state().lock);
  state().contexts--;
  return SUCCESS;
}
API cuCtxSetCurrent(void*) { return fault("cuCtxSetCurrent"); }

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  if (int error = enter("cuMemGetInfo_v2")) return error;
  std::lock_guard<std::mutex> hold(state().lock);
  *total = state().memory;
  *free_bytes = state().memory - std::min(state().memory, state().used);
  return SUCCESS;
}
API cuMemAlloc_v2(Pointer* to, size_t bytes) {
  if (int error = enter("cuMemAlloc_v2")) return error;
  State& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  if (!bytes || s.used + bytes > s.memory) return OUT_OF_MEMORY;
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes)) return OUT_OF_MEMORY;
  memset(memory, 0xCD, bytes);  // device memory comes as it is
  s.used += bytes;
  s.allocations[memory] = bytes;
  *to = reinterpret_cast<Pointer>(memory);
  return SUCCESS;
}
API cuMemFree_v2(Pointer pointer) {
  std::lock_guard<std::mutex> hold(state().lock);
  auto found = state().allocations.find(reinterpret_cast<void*>(pointer));
  if (found == state().allocations.end()) return INVALID_VALUE;
  state().used -= found->second;
  free(found->first);
  state().allocations.erase(found);
  return SUCCESS;
}
API cuMemHostAlloc(void** to, size_t bytes, unsigned) {
  if (int error = enter("cuMemHostAlloc")) return error;
  return posix_memalign(to, 256, bytes) ? OUT_OF_MEMORY : SUCCESS;
}
API cuMemFreeHost(void* pointer) { free(pointer); return SUCCESS; }

static int copy(const char* call, void* stream, void* to, const void* from, size_t bytes) {
  if (int error = enter(call)) return error;
  return enqueue(stream, [=] { memmove(to, from, bytes); });
}
API cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync_v2", stream, reinterpret_cast<void*>(to), from, bytes);
}
API cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync_v2", stream, to, reinterpret_cast<void*>(from), bytes);
}
API cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoDAsync_v2", stream, reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
}
API cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, void* stream) {
  if (int error = enter("cuMemsetD8Async")) return error;
  return enqueue(stream, [=] { memset(reinterpret_cast<void*>(to), value, bytes); });
}

API cuStreamCreate(void** stream, unsigned) {
  if (int error = enter("cuStreamCreate")) return error;
  *stream = new Stream;
  return SUCCESS;
}
API cuStreamDestroy_v2(void* stream) {
  drain(static_cast<Stream*>(stream), nullptr);
  delete static_cast<Stream*>(stream);
  return SUCCESS;
}
API cuStreamSynchronize(void* handle) {
  auto* stream = static_cast<Stream*>(handle);
  if (int error = enter("cuStreamSynchronize")) return error;
  if (stream->capture) return CAPTURE_UNSUPPORTED;
  drain(stream, nullptr);
  return state().lost;
}
API cuEventCreate(void** event, unsigned) {
  if (int error = enter("cuEventCreate")) return error;
  *event = new Event;
  return SUCCESS;
}
API cuEventDestroy_v2(void* event) { delete static_cast<Event*>(event); return SUCCESS; }
API cuEventRecord(void* handle, void* stream) {
  if (int error = enter("cuEventRecord")) return error;
  auto* event = static_cast<Event*>(handle);
  event->stream = static_cast<Stream*>(stream);
  const unsigned mark = ++event->recorded;
  return enqueue(stream, [event, mark] { event->reached = mark; });
}
API cuEventSynchronize(void* handle) {
  if (int error = enter("cuEventSynchronize")) return error;
  auto* event = static_cast<Event*>(handle);
  if (event->stream) drain(event->stream, event);
  return state().lost;
}
API cuEventQuery(void* handle) {
  if (int error = enter("cuEventQuery")) return error;
  return static_cast<Event*>(handle)->done() ? SUCCESS : NOT_READY;
}
API cuEventElapsedTime_v2(float* ms, void*, void*) { *ms = 0.0f; return SUCCESS; }

// An image is what the stand-in compiler makes: anything that begins with its mark.
API cuModuleLoadData(void** module, const void* image) {
  if (int error = enter("cuModuleLoadData")) return error;
  if (memcmp(image, IMAGE_MARK, sizeof IMAGE_MARK - 1)) return INVALID_IMAGE;
  *module = &cuemu::kernels();
  return SUCCESS;
}
API cuModuleUnload(void*) { return SUCCESS; }
API cuModuleGetFunction(void** function, void*, const char* name) {
  if (int error = enter("cuModuleGetFunction")) return error;
  auto found = cuemu::kernels().find(name);
  if (found == cuemu::kernels().end()) return NOT_FOUND;
  *function = &*found;
  return SUCCESS;
}
API cuFuncSetAttribute(void*, int, int) { return enter("cuFuncSetAttribute"); }
API cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
  if (int error = enter("cuFuncGetParamInfo")) return error;
  if (index) return INVALID_VALUE;
  *offset = 0;
  *bytes = static_cast<Named*>(function)->second.args_bytes;
  return SUCCESS;
}
API cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** args, void**) {
  if (int error = enter("cuLaunchKernel")) return error;
  if (bx * by * bz > 1024 || !gx || !gy || !gz || shared > 227 << 10) return INVALID_VALUE;
  auto* named = static_cast<Named*>(function);
  return enqueue(stream, standin::launch(named->first, dim3(gx, gy, gz), dim3(bx, by, bz), shared, named->second.bind(args[0])));
}

API cuStreamBeginCapture_v2(void* stream, int) {
  if (int error = enter("cuStreamBeginCapture_v2")) return error;
  static_cast<Stream*>(stream)->capture = new Graph;
  return SUCCESS;
}
API cuStreamEndCapture(void* handle, void** graph) {
  auto* stream = static_cast<Stream*>(handle);
  *graph = stream->capture;
  stream->capture = nullptr;
  return enter("cuStreamEndCapture");
}
API cuGraphInstantiateWithFlags(void** to, void* graph, u64_t) {
  if (int error = enter("cuGraphInstantiateWithFlags")) return error;
  *to = new Graph(*static_cast<Graph*>(graph));
  return SUCCESS;
}
API cuGraphLaunch(void* graph, void* stream) {
  if (int error = enter("cuGraphLaunch")) return error;
  for (auto& op : static_cast<Graph*>(graph)->ops) enqueue(stream, op);
  return SUCCESS;
}
API cuGraphExecDestroy(void* graph) { delete static_cast<Graph*>(graph); return SUCCESS; }
API cuGraphDestroy(void* graph) { delete static_cast<Graph*>(graph); return SUCCESS; }

// For the other stand-in libraries.
API standin_enqueue(void* stream, const std::function<void()>* op) { return enqueue(stream, *op); }
API standin_enter(const char* call) { return enter(call); }
// The `after`-th next call of that name, or of any, fails with `code`.
API standin_fail(const char* call, int after, int code) {
  std::lock_guard<std::mutex> hold(state().lock);
  state().fault_met.clear();
  state().fault_call = call;
  state().fault_after = after;
  state().fault_code = code;
  return SUCCESS;
}
// The call that the fault was given to, which lives until the next one is asked for; empty while none was.
extern "C" __attribute__((visibility("default"))) const char* standin_met() {
  std::lock_guard<std::mutex> hold(state().lock);
  return state().fault_met.c_str();
}
// How often an entry point was called so far.
API standin_calls(const char* call) {
  std::lock_guard<std::mutex> hold(state().lock);
  return state().calls[call];
}
API standin_order(int kind, unsigned seed) {
  std::lock_guard<std::mutex> hold(state().lock);
  state().order = cuemu::Order{static_cast<cuemu::Order::Kind>(kind), seed};
  return SUCCESS;
}
// What the device has of memory from now on; what was allocated stays.
API standin_memory(u64_t bytes) {
  std::lock_guard<std::mutex> hold(state().lock);
  state().memory = bytes;
  return SUCCESS;
}
API standin_driver(int version, int devices) {
  state().version = version;
  state().devices = devices;
  return SUCCESS;
}
