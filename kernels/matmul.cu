// matmul() on the GPU (contract: matmul.cuh): cuBLASLt. A row-major matrix is the transpose of a column-major one, so D
// = op(A) op(B) is asked for as D^T = op(B)^T op(A)^T: cuBLASLt's A is our B, its m is our n, and a bias over our
// columns is one over its rows, as its epilogues want. Choices, plans and the workspace belong to one device; calls to
// one host thread.
#include "kernels/matmul.cuh"

#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device_memory.h"
#include "kernels/elementwise.cuh"
#include "kernels/gelu.cuh"
#include "kernels/profile.h"

namespace {

void cublas_check(cublasStatus_t status, const char* what, int line) {
  if (status != CUBLAS_STATUS_SUCCESS)
    failure("%s failed at matmul.cu:%d: %s", what, line, cublasLtGetStatusString(status));
}
#define CUBLAS_CHECK(expression) cublas_check((expression), #expression, __LINE__)

size_t workspace_size = MATMUL_WORKSPACE;  // matmul_workspace() changes it
constexpr int CANDIDATES = 24, FINALISTS = 4;
constexpr float FAILED = 1e30f;  // the time of a candidate that does not run

template <class T> constexpr cudaDataType_t data_type = CUDA_R_32F;
template <> constexpr cudaDataType_t data_type<bf16> = CUDA_R_16BF;

// Everything the choice of an algorithm may depend on.
struct Shape {
  int type_in, type_out, m, n, k, trans_a, trans_b, lda, ldb, ldd, accumulate, epilogue, has_aux, alignment, batch;
  auto operator<=>(const Shape&) const = default;
};

std::string shape_text(const Shape& s) {
  return format("in%d out%d m%d n%d k%d %c%c lda%d ldb%d ldd%d acc%d ep%d aux%d al%d", s.type_in, s.type_out, s.m, s.n,
                s.k, s.trans_a ? 'T' : 'N', s.trans_b ? 'T' : 'N', s.lda, s.ldb, s.ldd, s.accumulate, s.epilogue,
                s.has_aux, s.alignment) +
         (s.batch > 1 ? format(" batch%d", s.batch) : "");
}

// cublasLtMatmulAlgo_t is an unnamed struct, which nvcc 13.0 rejects as a container element.
struct Algorithm {
  cublasLtMatmulAlgo_t opaque;
};

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;  // cuBLASLt's A and B: our B and A
  Algorithm algorithm;
  bool fused;  // the epilogue is cuBLASLt's; else a kernel of ours follows
  explicit Plan(bool fused) : fused(fused) {}
  Plan(const Plan&) = delete;
  ~Plan() {
    if (operation) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {a, b, d})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
  }
};

// An algorithm as MatmulChoices keeps it, which was compared with the plain product if it differs from that: "right
// fused" or "right plain", and its bytes in hexadecimal.
struct Choice {
  bool fused;
  Algorithm algorithm;
};
const std::string FUSED = "right fused ", PLAIN = "right plain ";

std::string choice_text(const Choice& choice) {
  unsigned char bytes[sizeof choice.algorithm];
  std::memcpy(bytes, &choice.algorithm, sizeof bytes);
  std::string text = choice.fused ? FUSED : PLAIN;
  for (unsigned char byte : bytes) text += format("%02x", byte);
  return text;
}

// false: something else has written this text.
bool read_choice(const std::string& text, Choice& choice) {
  unsigned char bytes[sizeof choice.algorithm];
  if (text.size() != FUSED.size() + 2 * sizeof bytes) return false;
  if (text.find_first_not_of("0123456789abcdef", FUSED.size()) != std::string::npos) return false;
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(FUSED.size() + 2 * i, 2), nullptr, 16));
  std::memcpy(&choice.algorithm, bytes, sizeof bytes);
  choice.fused = text.starts_with(FUSED);
  return choice.fused || text.starts_with(PLAIN);
}

struct Device {
  cublasLtHandle_t handle = nullptr;
  MatmulChoices choices;
  std::map<Shape, std::unique_ptr<Plan>> plans;
  int plans_version = 0;  // of the choices that the plans were made from

  Device() : choices(format("%s\t%zu", device_properties().name, cublasLtGetVersion())) {
    CUBLAS_CHECK(cublasLtCreate(&handle));
  }
};

// Neither is ever destroyed: the CUDA runtime may be gone before static objects are.
Device& device() {
  static Device* one = new Device;
  return *one;
}

// One a stream: products on two streams may run at the same time.
std::map<cudaStream_t, void*>& workspaces() {
  static auto* all = new std::map<cudaStream_t, void*>;
  return *all;
}

void* workspace(cudaStream_t stream) {
  void*& memory = workspaces()[stream];
  if (!memory) CUDA_CHECK(cudaMalloc(&memory, workspace_size));
  return memory;
}

template <class V> void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const V& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
}

// Where a fused epilogue finds its arrays in this call.
template <class TIn, class TOut> void set_arrays(const Plan& plan, const Matmul<TIn, TOut>& p) {
  if (!plan.fused || p.epilogue == Epilogue::none) return;
  if (p.epilogue != Epilogue::dgelu) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (p.aux && p.epilogue != Epilogue::bias) set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
}

// The operation, all but its algorithm. It has the attributes of its epilogue and no others, which cuBLASLt may refuse:
// without the epilogue it is described anew. The types of bias and aux are left at their defaults, D's.
template <class TIn, class TOut> std::unique_ptr<Plan> describe(const Matmul<TIn, TOut>& p, bool fused) {
  auto plan = std::make_unique<Plan>(fused);
  cublasOperation_t transpose[] = {CUBLAS_OP_N, CUBLAS_OP_T};
  CUBLAS_CHECK(
      cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));  // float stays float: no TF32
  set(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, transpose[p.trans_b]);
  set(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, transpose[p.trans_a]);
  auto layout = [&](cublasLtMatrixLayout_t* l, cudaDataType_t type, int rows, int columns, int ld) {  // ours, row-major
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(l, type, columns, rows, ld));
    int64_t apart = int64_t(rows) * ld;
    if (p.batch == 1) return;
    CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p.batch, sizeof p.batch));
    CUBLAS_CHECK(
        cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart, sizeof apart));
  };
  layout(&plan->a, data_type<TIn>, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb);
  layout(&plan->b, data_type<TIn>, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda);
  layout(&plan->d, data_type<TOut>, p.m, p.n, p.ldd);
  if (!fused || p.epilogue == Epilogue::none) return plan;
  cublasLtEpilogue_t with_gelu = p.aux ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
  set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
      p.epilogue == Epilogue::bias    ? CUBLASLT_EPILOGUE_BIAS
      : p.epilogue == Epilogue::dgelu ? CUBLASLT_EPILOGUE_DGELU
                                      : with_gelu);
  if (p.aux && p.epilogue != Epilogue::bias) set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(p.ldd));
  set_arrays(*plan, p);
  return plan;
}

template <class TIn, class TOut>
cublasStatus_t multiply(const Plan& plan, const Algorithm& algorithm, const Matmul<TIn, TOut>& p, void* workspace,
                        size_t bytes, cudaStream_t stream) {
  float one = 1, beta = p.c ? 1 : p.beta;
  return cublasLtMatmul(device().handle, plan.operation, &one, p.b, plan.a, p.a, plan.b, &beta, p.c ? p.c : p.d, plan.d,
                        p.d, plan.d, &algorithm.opaque, workspace, bytes, stream);
}

// Whether cuBLASLt takes the algorithm, which another process may have chosen.
bool runs(const Plan& plan, const Algorithm& algorithm) {
  cublasLtMatmulHeuristicResult_t check;
  return cublasLtMatmulAlgoCheck(device().handle, plan.operation, plan.a, plan.b, plan.d, plan.d, &algorithm.opaque,
                                 &check) == CUBLAS_STATUS_SUCCESS &&
         check.workspaceSize <= workspace_size;
}

// The heuristic's algorithms for arrays at multiples of these bytes, best first. schemes: how parts of k may be added.
std::vector<Algorithm> heuristic(const Plan& plan, size_t workspace, uint32_t schemes, uint32_t in_alignment,
                                 uint32_t out_alignment) {
  cublasLtMatmulPreference_t preference;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, in_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, in_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
  cublasLtMatmulHeuristicResult_t results[CANDIDATES];
  int count = 0;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(device().handle, plan.operation, plan.a, plan.b, plan.d,
                                                         plan.d, preference, CANDIDATES, results, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<Algorithm> algorithms;
  if (status != CUBLAS_STATUS_SUCCESS) return algorithms;  // NOT_SUPPORTED: nothing fits
  for (int i = 0; i < count; i++)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({results[i].algo});
  return algorithms;
}

int32_t number_in(const Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = -1;
  size_t written;
  CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm.opaque, attribute, &value, sizeof value, &written));
  return value;
}
int parts_of_k(const Algorithm& algorithm) { return number_in(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM); }

// The epilogue for a plan that does not fuse it, in place on d.
template <class T>
__global__ void epilogue_kernel(T* d, const T* bias, T* aux, int m, int n, int ld, bool dgelu, bool with_gelu) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= n) return;
  for (int row = blockIdx.y; row < m; row += gridDim.y) {
    size_t i = size_t(row) * ld + column;
    float x = to_float(d[i]);
    if (dgelu) {
      x *= gelu_grad(to_float(aux[i]));
    } else {
      x += to_float(bias[column]);
      if (with_gelu && aux) aux[i] = from_float<T>(x);
      if (with_gelu) x = gelu(x);
    }
    d[i] = from_float<T>(x);
  }
}

// The rest of the work, after the plan's product.
template <class TIn, class TOut> void finish(const Plan& plan, const Matmul<TIn, TOut>& p, cudaStream_t stream) {
  if (plan.fused || p.epilogue == Epilogue::none) return;
  if constexpr (std::is_same_v<TIn, TOut>)
    LAUNCH(epilogue_kernel<TOut>, grid_of_rows(p.m, p.n, 256), dim3(256), 0, stream, p.d, p.bias, p.aux, p.m, p.n,
           p.ldd, p.epilogue == Epilogue::dgelu, p.epilogue == Epilogue::bias_gelu);
}

// The fastest few that run, with their milliseconds, fastest first: the time of several products in a row, with our
// epilogue where the plan does not fuse it, as the median of several times; a first ranking, then the best few again.
template <class TIn, class TOut>
std::vector<std::pair<float, Algorithm>> fastest(const Plan& plan, const std::vector<Algorithm>& algorithms,
                                                 const Matmul<TIn, TOut>& p, cudaStream_t stream) {
  cudaEvent_t start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));
  auto median = [&](const Algorithm& algorithm, int samples, int products) {
    std::vector<float> times(samples);
    for (float& time : times) {
      CUDA_CHECK(cudaEventRecord(start, stream));
      for (int i = 0; i < products; i++) {
        if (multiply(plan, algorithm, p, workspace(stream), workspace_size, stream) != CUBLAS_STATUS_SUCCESS)
          return FAILED;
        finish(plan, p, stream);
      }
      CUDA_CHECK(cudaEventRecord(stop, stream));
      CUDA_CHECK(cudaEventSynchronize(stop));
      CUDA_CHECK(cudaEventElapsedTime(&time, start, stop));
      time /= float(products);
    }
    std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
    return times[samples / 2];
  };
  std::vector<std::pair<float, size_t>> ranking;
  for (size_t i = 0; i < algorithms.size(); i++) {
    median(algorithms[i], 1, 1);  // warm-up
    ranking.push_back({median(algorithms[i], 3, 2), i});
  }
  std::sort(ranking.begin(), ranking.end());
  ranking.resize(std::min<size_t>(ranking.size(), FINALISTS));
  for (auto& [time, i] : ranking) time = median(algorithms[i], 5, 4);
  std::sort(ranking.begin(), ranking.end());
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::vector<std::pair<float, Algorithm>> best;
  for (auto& [time, i] : ranking)
    if (time < FAILED) best.push_back({time, algorithms[i]});
  return best;
}

// Memory for the arrays that `add` adds to a plan, as long as this lives. false: there is not enough.
class Temporary {
 public:
  template <class F> explicit Temporary(F add) {
    MemoryPlan plan;
    add(plan);
    there_is_ = plan.total() == 0 || cudaMalloc(&base_, plan.total()) == cudaSuccess;
    if (there_is_) plan.point_into(base_);
    else cudaGetLastError();
  }
  Temporary(const Temporary&) = delete;
  ~Temporary() {
    if (there_is_) cudaFree(base_);
  }
  explicit operator bool() const { return there_is_; }

 private:
  char* base_ = nullptr;
  bool there_is_;
};

// ---- is a result right?

constexpr int CHECK_BLOCKS = 128, CHECK_THREADS = 256, CHECK_WARPS = CHECK_BLOCKS * CHECK_THREADS / WARP;

// x [n]: numbers between -1 and 1 without order, of their own for each n.
template <class T> __global__ void inputs_kernel(T* x, size_t n) {
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    uint64_t bits = (i + n) * 0x9E3779B97F4A7C15ull;
    bits = (bits ^ (bits >> 32)) * 0x94D049BB133111EBull;
    x[i] = from_float<T>(float(int32_t(bits >> 32)) * 0x1p-31f);
  }
}

// Of every warp: the largest |x - reference| and the largest |reference|, infinite where one is not finite.
template <class T>
__global__ void differences_kernel(float* largest, const T* x, const T* reference, int m, int n, int ld) {
  float found[2] = {};
  size_t step = size_t(gridDim.x) * blockDim.x, thread = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (size_t i = thread; i < size_t(m) * n; i += step) {
    size_t at = i / n * ld + i % n;
    float r = to_float(reference[at]), difference = fabsf(to_float(x[at]) - r);
    found[0] = isfinite(difference) ? fmaxf(found[0], difference) : INFINITY;
    found[1] = isfinite(r) ? fmaxf(found[1], fabsf(r)) : INFINITY;
  }
  warp_max(found);
  if (threadIdx.x % WARP == 0)
    for (int i = 0; i < 2; i++) largest[2 * (thread / WARP) + i] = found[i];
}

struct Comparison {
  float difference = 0, size = 0;  // the largest difference and the largest value of the plain product
  bool possible() const { return size > 0 && std::isfinite(size); }
};

template <class T>
void compare(Comparison& with, float* largest, const T* x, const T* reference, int m, int n, int ld,
             cudaStream_t stream) {
  LAUNCH(differences_kernel<T>, dim3(CHECK_BLOCKS), dim3(CHECK_THREADS), 0, stream, largest, x, reference, m, n, ld);
  std::vector<float> host(2 * CHECK_WARPS);
  CUDA_CHECK(cudaMemcpyAsync(host.data(), largest, host.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < CHECK_WARPS; i++) {
    with.difference = std::max(with.difference, host[2 * i]);
    with.size = std::max(with.size, host[2 * i + 1]);
  }
}

// The product by the first algorithm of the heuristic that does not divide k, in memory given to no other; with our
// epilogue. false: there is no such algorithm.
template <class TIn, class TOut> bool multiply_plainly(const Matmul<TIn, TOut>& p, int times, cudaStream_t stream) {
  auto plan = describe(p, false);
  bool aligned = aligned16(p.a, p.b, p.d, p.c);
  for (const Algorithm& algorithm :
       heuristic(*plan, 0, CUBLASLT_REDUCTION_SCHEME_NONE, aligned ? 16 : sizeof(TIn), aligned ? 16 : sizeof(TOut))) {
    if (parts_of_k(algorithm) > 1) continue;
    for (int i = 0; i < times; i++) {
      CUBLAS_CHECK(multiply(*plan, algorithm, p, nullptr, 0, stream));
      finish(*plan, p, stream);
    }
    return true;
  }
  return false;
}

// The product by an algorithm, `times` times. False if cuBLAS refuses it.
template <class TIn, class TOut>
bool multiply_by(const Plan& plan, const Algorithm& algorithm, const Matmul<TIn, TOut>& p, int times,
                 cudaStream_t stream) {
  set_arrays(plan, p);
  for (int i = 0; i < times; i++) {
    if (multiply(plan, algorithm, p, workspace(stream), workspace_size, stream) != CUBLAS_STATUS_SUCCESS) return false;
    finish(plan, p, stream);
  }
  return true;
}

// The difference between the algorithm's results and those of the plain product, as a multiple of the bound for
// rounding; negative if that is unknown, because there is no memory, or because the plain product is 0 or not finite.
// Writes over p's outputs. A and B are random numbers, since the run's may hide a mistake (rows of 0 where nothing is
// predicted), and the bias, which is 0 in a new model, is a row of their product. The plain product goes into the
// stream's workspace, as many rows at a time as fit. Where the product adds to D, D is zeroed before and it is done
// twice.
// The bound for rounding: in a step of 8 products a tensor core cuts 9 terms at 2^-24 of the largest and their sum at
// 2^-23 (MMA-Sim, arXiv 2511.10909), which is less than 2^-23 a product, parts of k included. Relative to the largest
// partial sum, which is about the largest of all results, either sum is thus off by at most k 2^-23. Results are
// rounded once, by our epilogue up to three times: 4 u.
template <class TIn, class TOut>
float error_of(const Plan& plan, const Algorithm& algorithm, Matmul<TIn, TOut> p, cudaStream_t stream) {
  constexpr float CANNOT_SAY = -1, WRONG = INFINITY;
  bool keeps = p.epilogue == Epilogue::bias_gelu && p.aux, biased = p.bias != nullptr;
  size_t row_bytes = p.ldd * (sizeof(TOut) + (keeps ? sizeof(TIn) : 0));
  int height = int(std::min<size_t>(p.m, workspace_size / row_bytes / 8 * 8));  // aligned rows of A and C
  float* largest;
  TIn *bias, *a, *b;
  size_t elements_a = size_t(p.trans_a ? p.k : p.m) * p.lda, elements_b = size_t(p.trans_b ? p.n : p.k) * p.ldb;
  Temporary memory([&](MemoryPlan& plan) {
    plan.add(&largest, 2 * CHECK_WARPS, "");
    plan.add(&bias, p.n, "");
    plan.add(&a, elements_a, "");
    plan.add(&b, elements_b, "");
  });
  if (height == 0 || !memory) return CANNOT_SAY;
  auto fill_inputs = [&](TIn* x, size_t n) {
    LAUNCH(inputs_kernel<TIn>, dim3(CHECK_BLOCKS), dim3(CHECK_THREADS), 0, stream, x, n);
  };
  fill_inputs(a, elements_a), fill_inputs(b, elements_b);
  p.a = a, p.b = b;
  auto* plain_d = static_cast<TOut*>(workspace(stream));
  auto* plain_aux = reinterpret_cast<TIn*>(plain_d + size_t(height) * p.ldd);
  int times = p.beta != 0 ? 2 : 1;
  auto rows = [&](int begin) {  // the plain product's, from there
    Matmul<TIn, TOut> slice = p;
    slice.d = plain_d;
    slice.m = std::min(height, p.m - begin);
    slice.a += begin * size_t(p.trans_a ? 1 : p.lda);
    if (p.c) slice.c += begin * size_t(p.ldd);
    if (p.aux) slice.aux = keeps ? plain_aux : p.aux + begin * size_t(p.ldd);
    return slice;
  };

  Comparison outputs;
  if (biased) {
    Matmul<TIn, TOut> slice = rows(0);
    slice.epilogue = Epilogue::none, slice.bias = nullptr, slice.aux = nullptr;
    if (!multiply_plainly(slice, 1, stream)) return CANNOT_SAY;
    compare(outputs, largest, plain_d, plain_d, slice.m, p.n, p.ldd, stream);
    CUDA_CHECK(cudaMemcpyAsync(bias, plain_d, p.n * sizeof(TIn), cudaMemcpyDeviceToDevice, stream));
    p.bias = bias;
  }
  auto fill = [&](auto* array, int byte, int count) {  // rows of it; what lies between them may be another's
    CUDA_CHECK(cudaMemset2DAsync(array, p.ldd * sizeof *array, byte, p.n * sizeof *array, count, stream));
  };
  fill(p.d, p.beta != 0 ? 0 : 0xff, p.m);  // 0xff: NaN
  if (keeps) fill(p.aux, 0xff, p.m);
  if (!multiply_by(plan, algorithm, p, times, stream)) return WRONG;
  for (int begin = 0; begin < p.m; begin += height) {
    Matmul<TIn, TOut> slice = rows(begin);
    if (p.beta != 0) fill(plain_d, 0, slice.m);
    if (!multiply_plainly(slice, times, stream)) return CANNOT_SAY;
    compare(outputs, largest, p.d + begin * size_t(p.ldd), plain_d, slice.m, p.n, p.ldd, stream);
    if (keeps) compare(outputs, largest, p.aux + begin * size_t(p.ldd), plain_aux, slice.m, p.n, p.ldd, stream);
  }
  if (!outputs.possible()) return CANNOT_SAY;
  float sums = 2 * float(p.k) * 0x1p-23f, u = std::is_same_v<TOut, float> ? 0x1p-24f : 0x1p-8f;
  return outputs.difference / outputs.size / (sums + 4 * u);
}

template <class TIn, class TOut> Shape shape_of(const Matmul<TIn, TOut>& p, bool aligned) {
  return {.type_in = int(data_type<TIn>),
          .type_out = int(data_type<TOut>),
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .trans_a = p.trans_a,
          .trans_b = p.trans_b,
          .lda = p.lda,
          .ldb = p.ldb,
          .ldd = p.ldd,
          .accumulate = p.c ? 2 : p.beta != 0,
          .epilogue = int(p.epilogue),
          .has_aux = p.aux != nullptr,
          .alignment = aligned ? 16 : int(sizeof(TIn)),
          .batch = p.batch};
}

// The fastest plan whose results are right, of plans with a fused epilogue and of those without, as far as they are
// possible; nullptr if none is. sure = false where one could not be compared: it may be right in another run. Writes
// over p's outputs.
template <class TIn, class TOut>
std::unique_ptr<Plan> fastest_right_plan(const Matmul<TIn, TOut>& p, const Shape& shape, const bool (&possible)[2],
                                         uint32_t out_alignment, bool& sure, cudaStream_t stream) {
  struct Finalist {
    float time;
    int fused;
    Algorithm algorithm;
  };
  std::vector<Finalist> finalists;
  std::unique_ptr<Plan> described[2];
  for (int fused : {0, 1}) {
    if (!possible[fused]) continue;
    described[fused] = describe(p, fused);
    // Parts of a divided k are added up in float32, never in bf16. A batch has enough blocks without.
    uint32_t divides = p.batch > 1 ? 0 : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    std::vector<Algorithm> algorithms = heuristic(
        *described[fused], workspace_size, CUBLASLT_REDUCTION_SCHEME_NONE | divides, shape.alignment, out_alignment);
    for (auto& [time, algorithm] : fastest(*described[fused], algorithms, p, stream))
      finalists.push_back({time, fused, algorithm});
  }
  std::stable_sort(finalists.begin(), finalists.end(), [](auto& a, auto& b) { return a.time < b.time; });
  for (const Finalist& one : finalists) {
    bool derived = one.fused && p.epilogue != Epilogue::none;
    int parts = parts_of_k(one.algorithm);
    float error = derived || parts > 1 ? error_of(*described[one.fused], one.algorithm, p, stream) : 0;
    if (error > 1)
      warn(
          "matrix products: cuBLASLt's algorithm %d%s%s is not used: its results at %s differ from the plain product's "
          "by %.3g times what rounding explains",
          number_in(one.algorithm, CUBLASLT_ALGO_CONFIG_ID), derived ? " with an epilogue" : "",
          parts > 1 ? format(" with k in %d parts", parts).c_str() : "", shape_text(shape).c_str(), error);
    sure = sure && error >= 0;
    if (error < 0 || error > 1) continue;
    std::unique_ptr<Plan> plan = std::move(described[one.fused]);
    plan->algorithm = one.algorithm;
    return plan;
  }
  return nullptr;
}

template <class TIn, class TOut> const Plan& find_plan(const Matmul<TIn, TOut>& p, cudaStream_t stream) {
  MatmulChoices& choices = device().choices;
  if (std::exchange(device().plans_version, choices.version()) != choices.version()) device().plans.clear();
  bool aligned = aligned16(p.a, p.b, p.d, p.bias, p.aux, p.c);
  if (p.batch > 1) aligned = aligned && p.m * p.n % 8 == 0 && p.m * p.k % 8 == 0 && p.k * p.n % 8 == 0;
  Shape shape = shape_of(p, aligned);
  std::unique_ptr<Plan>& plan = device().plans[shape];
  if (plan) {
    set_arrays(*plan, p);
    return *plan;
  }

  // A fused epilogue wants its arrays at multiples of 16 bytes. In float GELU is always ours: what is recomputed for
  // the backward pass is then what the forward pass had, to the bit.
  bool gelu_in_float = std::is_same_v<TIn, float> && p.epilogue != Epilogue::none && p.epilogue != Epilogue::bias;
  bool more = p.epilogue != Epilogue::none;
  bool possible[2] = {more, !more || (aligned && !gelu_in_float && (!p.aux || p.ldd % 8 == 0))};  // [fused]
  std::string name = shape_text(shape);
  Choice known;
  if (const std::string* text = choices.find(name); text && read_choice(*text, known) && possible[known.fused]) {
    auto described = describe(p, known.fused);
    described->algorithm = known.algorithm;
    if (runs(*described, described->algorithm)) return *(plan = std::move(described));
  }

  // Adding to D many times would change it. Without memory for another D nothing is measured.
  Matmul<TIn, TOut> trial = p;
  bool adds = p.beta != 0;
  Temporary spare([&](MemoryPlan& arrays) {
    if (adds) arrays.add(&trial.d, size_t(p.m) * p.ldd, "");
  });
  // An experiment, which ends when dev/gpu/visit.sh has asked a GPU: the heuristic's first algorithm, unmeasured, with
  // cuBLASLt's epilogue where it can be ("fused") or with ours.
  static const char* first = std::getenv("PLUSGPT_FIRST_PRODUCT");
  bool measured = bool(spare) && !first;
  if (adds && measured) zero(trial.d, size_t(p.m) * p.ldd, stream);
  uint32_t out_alignment = aligned ? 16 : sizeof(TOut);
  if (measured) plan = fastest_right_plan(trial, shape, possible, out_alignment, measured, stream);
  if (!plan) {
    auto plain = describe(p, !more || (first && !strcmp(first, "fused") && possible[true]));
    std::vector<Algorithm> algorithms =
        heuristic(*plain, workspace_size, CUBLASLT_REDUCTION_SCHEME_NONE, shape.alignment, out_alignment);
    if (algorithms.empty()) failure("cuBLASLt has no algorithm for the product %s", name.c_str());
    plain->algorithm = algorithms[0];
    plan = std::move(plain);
    measured = false;
  }
  set_arrays(*plan, p);
  choices.choose(name, choice_text({plan->fused, plan->algorithm}), measured);
  return *plan;
}

}  // namespace

template <class TIn, class TOut> void matmul(const Matmul<TIn, TOut>& given, cudaStream_t stream) {
  Matmul<TIn, TOut> p = given;
  check_matmul(p);
  if (p.m == 0 || p.n == 0) return;
  const Plan& plan = find_plan(p, stream);
  {
    ProfileScope scope("matmul", stream);
    CUBLAS_CHECK(multiply(plan, plan.algorithm, p, workspace(stream), workspace_size, stream));
  }
  finish(plan, p, stream);
}

template void matmul(const Matmul<float, float>&, cudaStream_t);
template void matmul(const Matmul<bf16, bf16>&, cudaStream_t);
template void matmul(const Matmul<bf16, float>&, cudaStream_t);

void matmul_release(cudaStream_t stream) {
  auto found = workspaces().find(stream);
  if (found == workspaces().end()) return;
  cudaFree(found->second);
  workspaces().erase(found);
}

void matmul_workspace(size_t bytes) {
  CUDA_CHECK(cudaDeviceSynchronize());  // products may still use the memory
  for (auto& [stream, memory] : workspaces()) CUDA_CHECK(cudaFree(memory));
  workspaces().clear();
  device().choices.forget();
  workspace_size = bytes;
}

MatmulChoices* matmul_choices() { return &device().choices; }
std::string matmul_library() { return format("cuBLASLt %zu", cublasLtGetVersion()); }
