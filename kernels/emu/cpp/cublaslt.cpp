// A stand-in for libcublasLt: one plain matrix product behind the calls that our layer makes. Column-major, sums in
// f64 in the order of k, so that a result depends on its own row and column only; where a test asks for it, in f32 and
// in an order that depends on the algorithm, as on a device.
#include "standin.h"
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>

API standin_enqueue(void* stream, const std::function<void()>* op);
API standin_enter(const char* call);

namespace {

enum Type { F32 = 0, F16 = 2, BF16 = 14, E4M3 = 28 };
enum Status { OK = 0, ALLOC_FAILED = 3, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

// A fault, or a device that is lost, in this library's numbers.
int enter(const char* call) {
  switch (standin_enter(call)) {
    case standin::SUCCESS: return OK;
    case standin::OUT_OF_MEMORY: return ALLOC_FAILED;
    default: return EXECUTION_FAILED;
  }
}

struct Layout { int type; uint64_t rows, cols; int64_t stride; };
// An algorithm: its number, the columns that it was proposed for, and how long it pretends to take.
struct Algorithm { uint64_t number, cols, pause_us, rest[5]; };
constexpr size_t RESULT_BYTES = 96;
// For tests: how many algorithms are proposed, how often each was queued, and whether they round each in its way.
int proposed = 1;
std::map<uint64_t, int> queued;
bool rounding = false;

struct Product {
  int transposed_a = 0, transposed_b = 0, epilogue = 1;
  const void* bias = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;
};

// A float of that many bits of mantissa below an exponent with that bias; the finite ones.
double small_float(unsigned bits, int mantissa, int bias) {
  const int exponent = int(bits >> mantissa);
  const double fraction = double(bits & ((1u << mantissa) - 1)) / double(1u << mantissa);
  return exponent ? std::ldexp(1.0 + fraction, exponent - bias) : std::ldexp(fraction, 1 - bias);
}

double load(int type, const void* p, int64_t i) {
  const unsigned word = type == F32 ? 0 : type == E4M3 ? static_cast<const uint8_t*>(p)[i] : static_cast<const uint16_t*>(p)[i];
  switch (type) {
    case F32: return static_cast<const float*>(p)[i];
    case F16: return (word >> 15 ? -1.0 : 1.0) * small_float(word & 0x7fff, 10, 15);
    case E4M3: return (word >> 7 ? -1.0 : 1.0) * small_float(word & 0x7f, 3, 7);
    default: return __uint_as_float(word << 16);
  }
}

// Finite numbers, to the nearest and to even.
uint16_t to_f16(double x) {
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - 11, -24);
  const double steps = std::nearbyint(std::ldexp(std::fabs(x), -unit));
  if (unit == -24 || steps == 0.0) return uint16_t(sign | unsigned(steps));
  const unsigned word = (unsigned(unit + 24) << 10) + unsigned(steps);
  return uint16_t(sign | std::min(word, 0x7c00u));
}

void store(int type, void* p, int64_t i, double x) {
  switch (type) {
    case F32: static_cast<float*>(p)[i] = float(x); break;
    case F16: static_cast<uint16_t*>(p)[i] = to_f16(x); break;
    default: static_cast<uint16_t*>(p)[i] = cuemu_to_bf16(float(x));
  }
}

// A matrix as rows of k values.
std::vector<double> gather(const Layout& l, const void* p, int64_t count, int64_t k, bool k_first) {
  std::vector<double> all(count * k);
  for (int64_t i = 0; i < count; i++)
    for (int64_t q = 0; q < k; q++) all[i * k + q] = load(l.type, p, k_first ? q + i * l.stride : i + q * l.stride);
  return all;
}

// The sum of k products; with a tile, in f32 over tiles of k that begin with the last one.
double dot(const double* left, const double* right, int64_t k, int64_t tile) {
  double sum = 0.0;
  if (!tile) {
    for (int64_t q = 0; q < k; q++) sum += left[q] * right[q];
    return sum;
  }
  float rounded = 0.0f;
  for (int64_t end = k; end > 0; end = (end - 1) / tile * tile)
    for (int64_t q = (end - 1) / tile * tile; q < end; q++) rounded += float(left[q] * right[q]);
  return rounded;
}

void multiply(const Product& product, const Layout& a, const Layout& b, const Layout& d, const void* pa, const void* pb,
              void* pd, int64_t tile) {
  const double scale = (product.scale_a ? *product.scale_a : 1.0f) * double(product.scale_b ? *product.scale_b : 1.0f);
  const int64_t m = d.rows, n = d.cols, k = product.transposed_a ? a.rows : a.cols;
  const auto left = gather(a, pa, m, k, product.transposed_a), right = gather(b, pb, n, k, !product.transposed_b);
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < m; i++) {
      const double bias = product.epilogue & 4 ? load(d.type == F16 ? F16 : BF16, product.bias, i) : 0.0;
      store(d.type, pd, i + j * d.stride, dot(&left[i * k], &right[j * k], k, tile) * scale + bias);
    }
}

template <class T> int give(const char* call, void** to, T value) {
  if (int error = enter(call)) return error;
  *to = new T(value);
  return OK;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 130000; }
API cublasLtCreate(void** handle) { return give("cublasLtCreate", handle, 0); }
API cublasLtDestroy(void* handle) { delete static_cast<int*>(handle); return OK; }
API cublasLtMatrixLayoutCreate(void** to, int type, uint64_t rows, uint64_t cols, int64_t stride) {
  return give("cublasLtMatrixLayoutCreate", to, Layout{type, rows, cols, stride});
}
API cublasLtMatrixLayoutDestroy(void* layout) { delete static_cast<Layout*>(layout); return OK; }
API cublasLtMatmulDescCreate(void** to, int, int) { return give("cublasLtMatmulDescCreate", to, Product{}); }
API cublasLtMatmulDescDestroy(void* product) { delete static_cast<Product*>(product); return OK; }
API cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  if (int error = enter("cublasLtMatmulDescSetAttribute")) return error;
  auto* product = static_cast<Product*>(handle);
  switch (attribute) {
    case 3: memcpy(&product->transposed_a, value, bytes); return OK;
    case 4: memcpy(&product->transposed_b, value, bytes); return OK;
    case 7: memcpy(&product->epilogue, value, bytes); return OK;
    case 8: memcpy(&product->bias, value, bytes); return OK;
    case 17: memcpy(&product->scale_a, value, bytes); return OK;
    case 18: memcpy(&product->scale_b, value, bytes); return OK;
    default: return NOT_SUPPORTED;
  }
}
API cublasLtMatmulPreferenceCreate(void** to) { return give("cublasLtMatmulPreferenceCreate", to, 0); }
API cublasLtMatmulPreferenceDestroy(void* preference) { delete static_cast<int*>(preference); return OK; }
API cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) {
  return enter("cublasLtMatmulPreferenceSetAttribute");
}
API cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void* layout_d, void*, int most, void* results, int* count) {
  if (int error = enter("cublasLtMatmulAlgoGetHeuristic")) return error;
  *count = std::min(most, proposed);
  memset(results, 0, RESULT_BYTES * *count);
  for (int i = 0; i < *count; i++) {
    const uint64_t cols = static_cast<Layout*>(layout_d)->cols, pause = i + 2 < proposed ? 2000 : 0;
    const Algorithm algorithm{uint64_t(i), cols, pause, {}};
    memcpy(static_cast<char*>(results) + i * RESULT_BYTES, &algorithm, sizeof algorithm);
  }
  return OK;
}
// Whether the algorithm takes a shape, as cublasLtMatmul does.
static bool takes(const Algorithm& algorithm, uint64_t cols) {
  return proposed == 1 || algorithm.number == 1 || (algorithm.number + 1 != uint64_t(proposed) && algorithm.cols == cols);
}
API cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void* layout_d, const void* chosen, void* result) {
  if (int error = enter("cublasLtMatmulAlgoCheck")) return error;
  memset(result, 0, RESULT_BYTES);
  memcpy(result, chosen, sizeof(Algorithm));
  return takes(*static_cast<const Algorithm*>(chosen), static_cast<Layout*>(layout_d)->cols) ? OK : NOT_SUPPORTED;
}
// With several algorithms the last is refused, the one before it is fast, the others are slow, and each but the second
// takes only the columns that it was proposed for.
API standin_algorithms(int count) {
  proposed = count;
  queued.clear();
  return OK;
}
// Whether sums are rounded in the order of the algorithm's own tiles, which depend on the columns that it is for.
API standin_rounding(int on) { rounding = on; return OK; }
API standin_queued(int number) { return queued[number]; }
API cublasLtMatmul(void*, void* product, const void* alpha, const void* a, void* layout_a, const void* b, void* layout_b,
                   const void* beta, const void*, void*, void* d, void* layout_d, const void* chosen, void*, size_t,
                   void* stream) {
  if (int error = enter("cublasLtMatmul")) return error;
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) return NOT_SUPPORTED;
  const Product p = *static_cast<Product*>(product);
  const Layout la = *static_cast<Layout*>(layout_a), lb = *static_cast<Layout*>(layout_b);
  const Layout ld = *static_cast<Layout*>(layout_d);
  const Algorithm algorithm = *static_cast<const Algorithm*>(chosen);
  if (!takes(algorithm, ld.cols)) return NOT_SUPPORTED;
  // As on a device: bytes only with their factors, those at addresses that 16 divides, and 8-bit operands only where the first one is transposed.
  if ((la.type == E4M3) != (p.scale_a && p.scale_b) || (la.type == E4M3 && !(p.transposed_a && !p.transposed_b))) return NOT_SUPPORTED;
  if ((uintptr_t(p.scale_a) | uintptr_t(p.scale_b)) % 16) return NOT_SUPPORTED;
  if (la.type != lb.type) return NOT_SUPPORTED;
  queued[algorithm.number]++;
  const int64_t tile = rounding ? 1 + int64_t(algorithm.cols % 13) : 0;
  const std::function<void()> op = [=] {
    usleep(algorithm.pause_us);
    multiply(p, la, lb, ld, a, b, d, tile);
  };
  return standin_enqueue(stream, &op);
}
