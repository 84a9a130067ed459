#include "emulation/cpu/onednn.h"

#if HAVE_ONEDNN
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <vector>

#include "base/error.h"

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
    return (kernels_[product] = make(product)).get();
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
  std::unique_ptr<Kernel> make(const Product& p) const try {
    if (!has(p.bf16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx512_core)) return nullptr;
    auto in = p.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    auto matrix = [](int rows, int columns, memory::data_type type, int ld, bool transposed) {
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
