// matmul() on the GPU (contract: matmul.cuh): cuBLASLt. A row-major matrix is the transpose of a column-major one, so D
// = op(A) op(B) is asked for as D^T = op(B)^T op(A)^T: cuBLASLt's A is our B, its m is our n, and a bias over our
// columns is one over its rows, as its epilogues want. Choices, plans and the workspace belong to one device; calls to
// one host thread.
#include "kernels/matmul.cuh"

#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/bias.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/gelu.cuh"
#include "kernels/profile.h"
#include "kernels/reduce.cuh"

namespace {

void cublas_check(cublasStatus_t status, const char* what, int line) {
  if (status != CUBLAS_STATUS_SUCCESS)
    failure("%s failed at matmul.cu:%d: %s", what, line, cublasLtGetStatusString(status));
}
#define CUBLAS_CHECK(expression) cublas_check((expression), #expression, __LINE__)

size_t workspace_size = MATMUL_WORKSPACE;  // matmul_workspace() changes both
int most_parts = MATMUL_PARTS;             // of k, where we divide it ourselves
constexpr int CANDIDATES = 24, FINALISTS = 4;
constexpr int LEAST_PART = 512;  // of k
constexpr float FAILED = 1e30f;  // the time of a candidate that does not run

template <class T> constexpr cudaDataType_t data_type = CUDA_R_32F;
template <> constexpr cudaDataType_t data_type<bf16> = CUDA_R_16BF;

// Everything the choice of an algorithm may depend on.
struct Shape {
  int type_in, type_out, m, n, k, trans_a, trans_b, lda, ldb, ldd, accumulate, epilogue, has_aux, alignment;
  auto operator<=>(const Shape&) const = default;
};

std::string shape_text(const Shape& s) {
  return format("in%d out%d m%d n%d k%d %c%c lda%d ldb%d ldd%d acc%d ep%d aux%d al%d", s.type_in, s.type_out, s.m, s.n,
                s.k, s.trans_a ? 'T' : 'N', s.trans_b ? 'T' : 'N', s.lda, s.ldb, s.ldd, s.accumulate, s.epilogue,
                s.has_aux, s.alignment);
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

// An algorithm as MatmulChoices keeps it: "fused" or "plain", and its bytes in hexadecimal.
struct Choice {
  bool fused;
  Algorithm algorithm;
};

std::string choice_text(const Choice& choice) {
  unsigned char bytes[sizeof choice.algorithm];
  std::memcpy(bytes, &choice.algorithm, sizeof bytes);
  std::string text = choice.fused ? "fused " : "plain ";
  for (unsigned char byte : bytes) text += format("%02x", byte);
  return text;
}

// false: something else has written this text.
bool read_choice(const std::string& text, Choice& choice) {
  unsigned char bytes[sizeof choice.algorithm];
  constexpr size_t WORD = 6;  // of "fused " and "plain "
  if (text.size() != WORD + 2 * sizeof bytes) return false;
  if (text.find_first_not_of("0123456789abcdef", WORD) != std::string::npos) return false;
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(WORD + 2 * i, 2), nullptr, 16));
  std::memcpy(&choice.algorithm, bytes, sizeof bytes);
  choice.fused = text.rfind("fused ", 0) == 0;
  return choice.fused || text.rfind("plain ", 0) == 0;
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

// Where a fused epilogue finds its arrays in this call. cuBLASLt does not add to a bias's gradient.
template <class TIn, class TOut> void set_arrays(const Plan& plan, const Matmul<TIn, TOut>& p) {
  if (plan.fused && p.dbias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.scratch);
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
  auto layout = [](cublasLtMatrixLayout_t* l, cudaDataType_t type, int rows, int columns, int ld) {  // ours, row-major
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(l, type, columns, rows, ld));
  };
  layout(&plan->a, data_type<TIn>, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb);
  layout(&plan->b, data_type<TIn>, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda);
  layout(&plan->d, data_type<TOut>, p.m, p.n, p.ldd);
  if (!fused || (p.epilogue == Epilogue::none && !p.dbias)) return plan;
  cublasLtEpilogue_t with_gelu = p.aux ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
  set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
      p.dbias                         ? CUBLASLT_EPILOGUE_BGRADA
      : p.epilogue == Epilogue::bias  ? CUBLASLT_EPILOGUE_BIAS
      : p.epilogue == Epilogue::dgelu ? CUBLASLT_EPILOGUE_DGELU
                                      : with_gelu);
  if (p.aux && p.epilogue != Epilogue::bias) set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(p.ldd));
  set_arrays(*plan, p);
  return plan;
}

template <class TIn, class TOut>
cublasStatus_t multiply(const Plan& plan, const Algorithm& algorithm, const Matmul<TIn, TOut>& p, TOut* d,
                        cudaStream_t stream) {
  float one = 1, beta = p.c ? 1 : p.beta;
  return cublasLtMatmul(device().handle, plan.operation, &one, p.b, plan.a, p.a, plan.b, &beta, p.c ? p.c : d, plan.d,
                        d, plan.d, &algorithm.opaque, workspace(stream), workspace_size, stream);
}

// Whether cuBLASLt takes the algorithm, which another process may have chosen.
bool runs(const Plan& plan, const Algorithm& algorithm) {
  cublasLtMatmulHeuristicResult_t check;
  return cublasLtMatmulAlgoCheck(device().handle, plan.operation, plan.a, plan.b, plan.d, plan.d, &algorithm.opaque,
                                 &check) == CUBLAS_STATUS_SUCCESS &&
         check.workspaceSize <= workspace_size;
}

// Adds the first few with k in 2 to most_parts parts. The gradient of a weight has fewer tiles than a GPU has
// multiprocessors, and a sum over all rows: only further parts of k fill whole waves. The heuristic knows few.
template <class TIn, class TOut>
void add_parts_of_k(std::vector<Algorithm>& algorithms, const Plan& plan, const Matmul<TIn, TOut>& p) {
  constexpr size_t DIVIDED = 3;
  constexpr double TILE = 128 * 256;
  if (double(p.m) * p.n > 2 * TILE * device_properties().multiProcessorCount) return;
  for (size_t i = 0, end = std::min(DIVIDED, algorithms.size()); i < end; i++) {
    int32_t divisible = 0;
    size_t written;
    if (cublasLtMatmulAlgoCapGetAttribute(&algorithms[i].opaque, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT, &divisible,
                                          sizeof divisible, &written) != CUBLAS_STATUS_SUCCESS ||
        !divisible)
      continue;
    for (int32_t parts = 2; parts <= std::min(most_parts, p.k / LEAST_PART); parts++) {
      Algorithm divided = algorithms[i];
      auto configure = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
        CUBLAS_CHECK(cublasLtMatmulAlgoConfigSetAttribute(&divided.opaque, attribute, &value, sizeof value));
      };
      configure(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts);
      configure(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
      if (runs(plan, divided)) algorithms.push_back(divided);
    }
  }
}

template <class TIn, class TOut>
std::vector<Algorithm> candidates(const Plan& plan, const Matmul<TIn, TOut>& p, uint32_t in_alignment,
                                  uint32_t out_alignment) {
  cublasLtMatmulPreference_t preference;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_size));
  // Parts of a split k are added up in float32, never in bf16.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
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
  add_parts_of_k(algorithms, plan, p);
  return algorithms;
}

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

// What the plan leaves to do after its product.
template <class TIn, class TOut>
void finish(const Plan& plan, const Matmul<TIn, TOut>& p, TOut* d, cudaStream_t stream) {
  if (p.dbias && plan.fused) {
    add_column_sums({{p.dbias}, 1}, p.biased, static_cast<const float*>(p.scratch), 1, stream);
  } else if (p.dbias) {
    bias_backward(p.dbias, p.b, p.scratch, p.k, p.biased, p.ldb, stream);
  }
  if (plan.fused || p.epilogue == Epilogue::none) return;
  if constexpr (std::is_same_v<TIn, TOut>)
    LAUNCH(epilogue_kernel<TOut>, dim3(blocks_for(p.n, 256), std::min(p.m, 65535)), dim3(256), 0, stream, d, p.bias,
           p.aux, p.m, p.n, p.ldd, p.epilogue == Epilogue::dgelu, p.epilogue == Epilogue::bias_gelu);
}

// The fastest candidate and its milliseconds, FAILED if none of them runs: the time of several products in a row, with
// our epilogue where the plan does not fuse it, as the median of several times; a first ranking, then the best few
// again.
template <class TIn, class TOut>
std::pair<float, Algorithm> fastest(const Plan& plan, const std::vector<Algorithm>& algorithms, Matmul<TIn, TOut> p,
                                    cudaStream_t stream) {
  TOut* d = p.d;
  void* spare = nullptr;
  // Adding to D many times would change it; without memory for another D the heuristic decides.
  if (p.beta != 0 || p.dbias) {
    size_t bytes = size_t(p.m) * p.ldd * sizeof(TOut), with_bias = bytes + p.biased * sizeof(float);
    if (cudaMalloc(&spare, with_bias) != cudaSuccess) {
      cudaGetLastError();
      return {0, algorithms[0]};
    }
    CUDA_CHECK(cudaMemsetAsync(spare, 0, with_bias, stream));
    d = static_cast<TOut*>(spare);
    if (p.dbias) p.dbias = reinterpret_cast<float*>(static_cast<char*>(spare) + bytes);
  }
  cudaEvent_t start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));
  auto median = [&](const Algorithm& algorithm, int samples, int products) {
    std::vector<float> times(samples);
    for (float& time : times) {
      CUDA_CHECK(cudaEventRecord(start, stream));
      for (int i = 0; i < products; i++) {
        if (multiply(plan, algorithm, p, d, stream) != CUBLAS_STATUS_SUCCESS) return FAILED;
        finish(plan, p, d, stream);
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
  if (spare) CUDA_CHECK(cudaFree(spare));
  return {ranking[0].first, algorithms[ranking[0].second]};
}

template <class TIn, class TOut> const Plan& find_plan(const Matmul<TIn, TOut>& p, cudaStream_t stream) {
  MatmulChoices& choices = device().choices;
  if (std::exchange(device().plans_version, choices.version()) != choices.version()) device().plans.clear();
  bool aligned = aligned16(p.a, p.b, p.d, p.bias, p.aux, p.c, static_cast<char*>(p.scratch));
  Shape shape{.type_in = int(data_type<TIn>),
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
              .epilogue = p.dbias ? -1 : int(p.epilogue),
              .has_aux = p.aux != nullptr,
              .alignment = aligned ? 16 : int(sizeof(TIn))};
  std::unique_ptr<Plan>& plan = device().plans[shape];
  if (plan) {
    set_arrays(*plan, p);
    return *plan;
  }

  // A fused epilogue wants its arrays at multiples of 16 bytes. In float GELU is always ours: what is recomputed for
  // the backward pass is then what the forward pass had, to the bit.
  bool gelu_in_float = std::is_same_v<TIn, float> && p.epilogue != Epilogue::none && p.epilogue != Epilogue::bias;
  bool more = p.epilogue != Epilogue::none || p.dbias;
  bool fusible = !more || (aligned && !gelu_in_float && (!p.aux || p.ldd % 8 == 0));
  auto possible = [&](bool fused) { return fused ? fusible : more; };
  std::string name = shape_text(shape);
  Choice known;
  if (const std::string* text = choices.find(name); text && read_choice(*text, known) && possible(known.fused)) {
    auto described = describe(p, known.fused);
    described->algorithm = known.algorithm;
    if (runs(*described, described->algorithm)) return *(plan = std::move(described));
  }
  float best = FAILED;
  std::unique_ptr<Plan> found;
  for (bool fused : {false, true}) {
    if (!possible(fused)) continue;
    auto described = describe(p, fused);
    std::vector<Algorithm> algorithms = candidates(*described, p, shape.alignment, aligned ? 16 : sizeof(TOut));
    if (algorithms.empty()) continue;
    auto [time, algorithm] = fastest(*described, algorithms, p, stream);
    described->algorithm = algorithm;
    if (time < best) best = time, found = std::move(described);
  }
  if (best == FAILED) failure("cuBLASLt offers nothing for the product %s", name.c_str());
  // A time of 0: nothing was measured, and another run may be able to.
  choices.choose(name, choice_text({found->fused, found->algorithm}), best > 0);
  return *(plan = std::move(found));
}

}  // namespace

template <class TIn, class TOut> void matmul(const Matmul<TIn, TOut>& given, cudaStream_t stream) {
  Matmul<TIn, TOut> p = given;
  check_matmul(p);
  if (p.m == 0 || p.n == 0) return;
  const Plan& plan = find_plan(p, stream);
  {
    ProfileScope scope("matmul", stream);
    CUBLAS_CHECK(multiply(plan, plan.algorithm, p, p.d, stream));
  }
  finish(plan, p, p.d, stream);
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

void matmul_workspace(size_t bytes, int parts) {
  CUDA_CHECK(cudaDeviceSynchronize());  // products may still use the memory
  for (auto& [stream, memory] : workspaces()) CUDA_CHECK(cudaFree(memory));
  workspaces().clear();
  device().choices.forget();
  workspace_size = bytes, most_parts = parts;
}

MatmulChoices* matmul_choices() { return &device().choices; }
