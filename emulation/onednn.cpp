#include "emulation/onednn.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cpu {
namespace {

constexpr int GAP = 64;  // the most elements behind a row that are checked: none may be read or written

// Random whole numbers from 1 to 4, of which no sum is 0, in rows of ld elements, with `between` behind each row. The
// address is a multiple of an element's size alone. Only what is set takes memory: ld may be the size of a vocabulary.
struct Operand {
  int ld, columns;
  bool bf16;
  std::unique_ptr<uint16_t[]> bits;
  Operand(std::minstd_rand& random, int rows, int columns, int ld, bool bf16, float between)
      : ld(ld), columns(columns), bf16(bf16) {
    bits = std::make_unique_for_overwrite<uint16_t[]>((1 + size_t(rows - 1) * ld + columns + GAP) * (bf16 ? 1 : 2));
    for (int r = 0; r < rows; r++)
      for (int c = 0, end = columns + (r == rows - 1 ? GAP : std::min(GAP, ld - columns)); c < end; c++)
        set(r, c, c < columns ? float(random() % 4 + 1) : between);
  }
  size_t at(int row, int column) const { return size_t(row) * ld + column; }
  void set(int row, int column, float x) {  // exact in bf16 too
    if (bf16) bits[1 + at(row, column)] = uint16_t(std::bit_cast<uint32_t>(x) >> 16);
    else floats()[at(row, column)] = x;
  }
  double operator()(int row, int column) const {
    return bf16 ? std::bit_cast<float>(uint32_t(bits[1 + at(row, column)]) << 16) : floats()[at(row, column)];
  }
  float* floats() const { return reinterpret_cast<float*>(bits.get()) + 1; }
  const void* data() const { return bf16 ? static_cast<const void*>(&bits[1]) : floats(); }
};

}  // namespace

bool computes(const Product& p, const std::function<void(const void* a, const void* b, float* d)>& multiply) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), untouched = 12345;
  std::minstd_rand random(1);
  Operand a(random, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda, p.bf16, nan);
  Operand b(random, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb, p.bf16, nan);
  Operand d(random, p.m, p.n, p.ldd, false, untouched);
  // D x = A (B x) + D x for random x takes m n + n k + m k operations, not m n k: exact too, and every wrong number of
  // a row shows, unless several cancel.
  std::vector<double> x(p.n), bx(p.k), right(p.m);
  for (double& one : x) one = 1 + random() % 10000;
  for (int k = 0; k < p.k; k++)
    for (int n = 0; n < p.n; n++) bx[k] += x[n] * (p.trans_b ? b(n, k) : b(k, n));
  for (int m = 0; m < p.m; m++) {
    for (int n = 0; n < p.n; n++) {
      if (p.beta == 0) d.set(m, n, nan);
      else right[m] += x[n] * d(m, n);
    }
    for (int k = 0; k < p.k; k++) right[m] += bx[k] * (p.trans_a ? a(k, m) : a(m, k));
  }
  multiply(a.data(), b.data(), d.floats());
  for (int m = 0; m < p.m; m++) {
    double found = 0;
    for (int n = 0; n < p.n; n++) found += x[n] * d(m, n);
    if (!(found == right[m])) return false;
    for (int c = p.n, end = p.n + (m == p.m - 1 ? GAP : std::min(GAP, p.ldd - p.n)); c < end; c++)
      if (d(m, c) != untouched) return false;
  }
  return true;
}

}  // namespace cpu

#if HAVE_ONEDNN
#include <dnnl.hpp>

extern "C" void omp_set_num_threads(int);

#ifdef __SANITIZE_THREAD__
// oneDNN keeps all threads' kernels in one cache. It is compiled without ThreadSanitizer, which does not see it wait.
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so"; }
#endif

namespace cpu {
namespace {

using dnnl::memory;

struct Kernel {
  dnnl::matmul run;
  memory a, b, d, scratch;
};

// Whether oneDNN uses these instructions: the CPU has them, and ONEDNN_MAX_CPU_ISA does not take them away.
bool has(int instructions) { return (dnnl_get_effective_cpu_isa() & instructions) == instructions; }

struct alignas(64) Line {
  char bytes[64];
};

// A thread's kernels, by product. oneDNN is built for OpenMP, whose number of threads belongs to the thread that asks:
// at 1 no others are started, and the pool's threads compute side by side.
class Kernels {
 public:
  Kernels() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) { omp_set_num_threads(1); }

  // nullptr: oneDNN has none that is fast. (Below AVX-512 it is level with OpenBLAS.)
  const Kernel* find(const Product& product) {
    if (auto known = kernels_.find(product); known != kernels_.end()) return known->second.get();
    if (kernels_.size() == 1024) kernels_.clear();  // each takes 70 us to make again
    auto made = make(product);
    if (made && !is_right(product, *made)) made = nullptr;
    return (kernels_[product] = std::move(made)).get();
  }

  void run(const Kernel& kernel, const void* a, const void* b, float* d) {
    size_t bytes = kernel.scratch.get_desc().get_size();
    if (scratch_.size() * sizeof(Line) < bytes) scratch_.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
    memory at_a = kernel.a, at_b = kernel.b, at_d = kernel.d, scratch = kernel.scratch;  // handles
    at_a.set_data_handle(const_cast<void*>(a)), at_b.set_data_handle(const_cast<void*>(b));
    at_d.set_data_handle(d), scratch.set_data_handle(scratch_.data());
    kernel.run.execute(
        stream_,
        {{DNNL_ARG_SRC, at_a}, {DNNL_ARG_WEIGHTS, at_b}, {DNNL_ARG_DST, at_d}, {DNNL_ARG_SCRATCHPAD, scratch}});
  }

 private:
  // Versions of oneDNN are wrong for some shapes, such as 3.7.2 for a row or column that is not dense. The finding of
  // one thread about a product holds for all.
  bool is_right(const Product& p, const Kernel& kernel) {
    static std::mutex mutex;
    static std::map<Product, bool> known;
    static bool warned = false;
    std::lock_guard lock(mutex);
    auto [found, is_new] = known.try_emplace(p);
    if (is_new) found->second = computes(p, [&](auto* a, auto* b, float* d) { run(kernel, a, b, d); });
    if (!found->second && !std::exchange(warned, true))
      warn(
          "%s computes a product wrongly (%s, m %d, n %d, k %d, trans %d %d, rows of %d, %d and %d elements): it and "
          "others of that kind are computed otherwise",
          onednn_kernels().c_str(), p.bf16 ? "bf16" : "float32", p.m, p.n, p.k, p.trans_a, p.trans_b, p.lda, p.ldb,
          p.ldd);
    return found->second;
  }

  std::unique_ptr<Kernel> make(const Product& p) const try {
    if (!has(p.bf16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx512_core)) return nullptr;
    if (p.beta != 0 && p.beta != 1) return nullptr;
    auto in = p.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    auto matrix = [](int rows, int columns, memory::data_type type, int ld, bool transposed) {
      if ((transposed ? columns : rows) == 1) ld = transposed ? rows : columns;  // of no meaning, but oneDNN reads it
      return memory::desc({rows, columns}, type, transposed ? memory::dims{1, ld} : memory::dims{ld, 1});
    };
    memory::desc a = matrix(p.m, p.k, in, p.lda, p.trans_a), b = matrix(p.k, p.n, in, p.ldb, p.trans_b);
    memory::desc d = matrix(p.m, p.n, memory::data_type::f32, p.ldd, false);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.beta != 0) {
      dnnl::post_ops sum;
      sum.append_sum(p.beta);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR < 3
    dnnl::matmul::primitive_desc chosen({a, b, d}, attributes, engine_);
#else
    dnnl::matmul::primitive_desc chosen(engine_, a, b, d, attributes);
#endif
    if (std::string(chosen.impl_info_str()).starts_with("ref")) return nullptr;  // plain loops
    auto handle = [&](const memory::desc& desc) { return memory(desc, engine_, nullptr); };
    return std::make_unique<Kernel>(
        Kernel{dnnl::matmul(chosen), handle(a), handle(b), handle(d), handle(chosen.scratchpad_desc())});
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    return nullptr;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Product, std::unique_ptr<Kernel>> kernels_;
  std::vector<Line> scratch_;
};

Kernels& kernels_of_thread() {
  static thread_local Kernels kernels;
  return kernels;
}

}  // namespace

bool multiply_by_onednn(const Product& product, const void* a, const void* b, float* d) {
  Kernels& kernels = kernels_of_thread();
  const Kernel* kernel = kernels.find(product);
  if (kernel) kernels.run(*kernel, a, b, d);
  return kernel;
}

bool onednn_multiplies_bf16() { return has(dnnl_cpu_isa_avx512_core_bf16); }

std::string onednn_kernels() {
  if (!has(dnnl_cpu_isa_avx512_core)) return "";
  const dnnl_version_t* version = dnnl_version();
  const char* instructions = has(dnnl_cpu_isa_avx512_core_amx)    ? "AMX"
                             : has(dnnl_cpu_isa_avx512_core_bf16) ? "AVX512_BF16"
                                                                  : "AVX-512";
  return format("oneDNN %d.%d.%d %s", version->major, version->minor, version->patch, instructions);
}

}  // namespace cpu

#else

bool cpu::multiply_by_onednn(const Product&, const void*, const void*, float*) { return false; }
bool cpu::onednn_multiplies_bf16() { return false; }
std::string cpu::onednn_kernels() { return ""; }

#endif
