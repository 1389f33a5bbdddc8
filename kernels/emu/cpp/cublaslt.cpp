// A stand-in for libcublasLt: one plain matrix product behind the calls that our layer makes. Column-major, sums in
// f64 in the order of k, so that a result depends on its own row and column only.
#include "standin.h"
#include <unistd.h>
#include <algorithm>
#include <cstdlib>

API standin_enqueue(void* stream, const std::function<void()>* op);

namespace {

enum Type { F32 = 0, F16 = 2, BF16 = 14 };
enum Status { OK = 0, NOT_SUPPORTED = 15 };

struct Layout { int type; uint64_t rows, cols; int64_t stride; };
// An algorithm: its number, the columns that it was proposed for, and how long it pretends to take.
struct Algorithm { uint64_t number, cols, pause_us, rest[5]; };
// For tests: how many algorithms are proposed, and how often each was queued.
int proposed = 1;
std::map<uint64_t, int> queued;

struct Product { int transposed_a = 0, transposed_b = 0, epilogue = 1; const void* bias = nullptr; };

double load(int type, const void* p, int64_t i) {
  if (type == F32) return static_cast<const float*>(p)[i];
  return __uint_as_float(unsigned(static_cast<const uint16_t*>(p)[i]) << 16);
}

void store(int type, void* p, int64_t i, double x) {
  if (type == F32)
    static_cast<float*>(p)[i] = float(x);
  else
    static_cast<uint16_t*>(p)[i] = cuemu_to_bf16(float(x));
}

// A matrix as rows of k values.
std::vector<double> gather(const Layout& l, const void* p, int64_t count, int64_t k, bool k_first) {
  std::vector<double> all(count * k);
  for (int64_t i = 0; i < count; i++)
    for (int64_t q = 0; q < k; q++) all[i * k + q] = load(l.type, p, k_first ? q + i * l.stride : i + q * l.stride);
  return all;
}

void multiply(const Product& product, const Layout& a, const Layout& b, const Layout& d, const void* pa, const void* pb,
              void* pd) {
  const int64_t m = d.rows, n = d.cols, k = product.transposed_a ? a.rows : a.cols;
  const auto left = gather(a, pa, m, k, product.transposed_a), right = gather(b, pb, n, k, !product.transposed_b);
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < m; i++) {
      double sum = product.epilogue & 4 ? load(BF16, product.bias, i) : 0.0;
      for (int64_t q = 0; q < k; q++) sum += left[i * k + q] * right[j * k + q];
      store(d.type, pd, i + j * d.stride, sum);
    }
}

template <class T> int give(void** to, T value) {
  *to = new T(value);
  return OK;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 130000; }
API cublasLtCreate(void** handle) { return give(handle, 0); }
API cublasLtDestroy(void* handle) { delete static_cast<int*>(handle); return OK; }
API cublasLtMatrixLayoutCreate(void** to, int type, uint64_t rows, uint64_t cols, int64_t stride) {
  return give(to, Layout{type, rows, cols, stride});
}
API cublasLtMatrixLayoutDestroy(void* layout) { delete static_cast<Layout*>(layout); return OK; }
API cublasLtMatmulDescCreate(void** to, int, int) { return give(to, Product{}); }
API cublasLtMatmulDescDestroy(void* product) { delete static_cast<Product*>(product); return OK; }
API cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  auto* product = static_cast<Product*>(handle);
  switch (attribute) {
    case 3: memcpy(&product->transposed_a, value, bytes); return OK;
    case 4: memcpy(&product->transposed_b, value, bytes); return OK;
    case 7: memcpy(&product->epilogue, value, bytes); return OK;
    case 8: memcpy(&product->bias, value, bytes); return OK;
    default: return NOT_SUPPORTED;
  }
}
API cublasLtMatmulPreferenceCreate(void** to) { return give(to, 0); }
API cublasLtMatmulPreferenceDestroy(void* preference) { delete static_cast<int*>(preference); return OK; }
API cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return OK; }
API cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void* layout_d, void*, int most, void* results, int* count) {
  constexpr size_t RESULT_BYTES = 96;
  *count = std::min(most, proposed);
  memset(results, 0, RESULT_BYTES * *count);
  for (int i = 0; i < *count; i++) {
    const uint64_t cols = static_cast<Layout*>(layout_d)->cols, pause = i + 2 < proposed ? 2000 : 0;
    const Algorithm algorithm{uint64_t(i), cols, pause, {}};
    memcpy(static_cast<char*>(results) + i * RESULT_BYTES, &algorithm, sizeof algorithm);
  }
  return OK;
}
// With several algorithms the last is refused, the one before it is fast, the others are slow, and each takes only
// the columns that it was proposed for.
API standin_algorithms(int count) {
  proposed = count;
  queued.clear();
  return OK;
}
API standin_queued(int number) { return queued[number]; }
API cublasLtMatmul(void*, void* product, const void* alpha, const void* a, void* layout_a, const void* b, void* layout_b,
                   const void* beta, const void*, void*, void* d, void* layout_d, const void* chosen, void*, size_t,
                   void* stream) {
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) return NOT_SUPPORTED;
  const Product p = *static_cast<Product*>(product);
  const Layout la = *static_cast<Layout*>(layout_a), lb = *static_cast<Layout*>(layout_b);
  const Layout ld = *static_cast<Layout*>(layout_d);
  const Algorithm algorithm = *static_cast<const Algorithm*>(chosen);
  if (proposed > 1 && (algorithm.number + 1 == uint64_t(proposed) || algorithm.cols != ld.cols)) return NOT_SUPPORTED;
  queued[algorithm.number]++;
  const std::function<void()> op = [=] {
    usleep(algorithm.pause_us);
    multiply(p, la, lb, ld, a, b, d);
  };
  return standin_enqueue(stream, &op);
}
