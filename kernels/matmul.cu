// matmul() on the GPU (contract: matmul.cuh): cuBLASLt. A row-major matrix is the transpose of a column-major one, so D
// = op(A) op(B) is asked for as D^T = op(B)^T op(A)^T: cuBLASLt's A is our B, its m is our n, and a bias over our
// columns is one over its rows, as its epilogues want. Choices, plans and the workspace belong to one device; calls to
// one host thread.
#include "kernels/matmul.cuh"

#include <cublasLt.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "kernels/elementwise.cuh"
#include "kernels/gelu.cuh"
#include "kernels/profile.h"

namespace {

void cublas_check(cublasStatus_t status, const char* what, int line) {
  if (status != CUBLAS_STATUS_SUCCESS)
    failure("%s failed at matmul.cu:%d: %s.", what, line, cublasLtGetStatusString(status));
}
#define CUBLAS_CHECK(expression) cublas_check((expression), #expression, __LINE__)

size_t workspace_size = size_t(32) << 20;  // matmul_workspace() changes it
constexpr int CANDIDATES = 24, FINALISTS = 4;
constexpr float FAILED = 1e30f;  // the time of a candidate that does not run

template <class T>
constexpr cudaDataType_t data_type = CUDA_R_32F;
template <>
constexpr cudaDataType_t data_type<bf16> = CUDA_R_16BF;

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

// cublasLtMatmulAlgo_t is a struct without a name, which nvcc 13.0 does not digest as an element of std containers.
struct Algorithm {
  cublasLtMatmulAlgo_t opaque;
};

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;  // cuBLASLt's A and B: our B and A
  Algorithm algorithm;
  bool fused = true;     // the epilogue is cuBLASLt's; else a kernel of ours follows
  bool settled = false;  // measured, or read from the cache
  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    if (operation) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {a, b, d})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
  }
};

// The choices as text: "GPU <tab> version <tab> shape <tab> fused <tab> 64 bytes in hexadecimal".
struct Choice {
  bool fused;
  Algorithm algorithm;
};
std::map<std::string, Choice> choices;  // by "GPU <tab> version <tab> shape"
std::string cache_path;

std::string choice_line(const std::string& key, const Choice& choice) {
  unsigned char bytes[sizeof choice.algorithm];
  std::memcpy(bytes, &choice.algorithm, sizeof bytes);
  std::string line = key + (choice.fused ? "\t1\t" : "\t0\t");
  for (unsigned char byte : bytes) line += format("%02x", byte);
  return line + "\n";
}

// Lines that do not parse are skipped: at worst a shape is measured again. Of two lines for one shape the later counts,
// because a shape whose algorithm cuBLASLt no longer takes is measured again and appended.
void read_choices(std::istream& in) {
  for (std::string line; std::getline(in, line);) {
    size_t hex = line.rfind('\t'), flag = hex == std::string::npos || hex < 3 ? std::string::npos : hex - 2;
    Choice choice;
    unsigned char bytes[sizeof choice.algorithm];
    if (flag == std::string::npos || line[flag] != '\t' || line.size() - hex - 1 != 2 * sizeof bytes) continue;
    std::string digits = line.substr(hex + 1);
    if (digits.find_first_not_of("0123456789abcdef") != std::string::npos) continue;
    for (size_t i = 0; i < sizeof bytes; i++)
      bytes[i] = static_cast<unsigned char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
    std::memcpy(&choice.algorithm, bytes, sizeof bytes);
    choice.fused = line[flag + 1] == '1';
    choices.insert_or_assign(line.substr(0, flag), choice);
  }
}

// One write of a whole line at the end of the file: several ranks may do so at once.
void append_to_cache(const std::string& line) {
  if (cache_path.empty()) return;
  int file = open(cache_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) return;  // a cache that cannot be written costs a second at the next start, nothing else
  [[maybe_unused]] ssize_t written = write(file, line.data(), line.size());
  close(file);
}

struct Device {
  cublasLtHandle_t handle = nullptr;
  std::string key;  // "GPU <tab> version <tab>"
  std::map<Shape, Plan> plans;
  std::map<cudaStream_t, void*> workspaces;  // one a stream: products on two streams may run at the same time

  Device() {
    int device = 0;
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    CUBLAS_CHECK(cublasLtCreate(&handle));
    key = format("%s\t%zu\t", properties.name, cublasLtGetVersion());
  }

  void* workspace(cudaStream_t stream) {
    void*& memory = workspaces[stream];
    if (!memory) CUDA_CHECK(cudaMalloc(&memory, workspace_size));
    return memory;
  }
};

Device& device() {
  static Device* one = new Device;  // never destroyed: the CUDA runtime may be gone before static objects are
  return *one;
}

template <class V>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const V& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
}

template <class TIn, class TOut>
void describe(Plan& plan, const Matmul<TIn, TOut>& p) {
  cublasOperation_t transpose[] = {CUBLAS_OP_N, CUBLAS_OP_T};
  CUBLAS_CHECK(
      cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));  // float stays float: no TF32
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, transpose[p.trans_b]);
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, transpose[p.trans_a]);
  auto layout = [](cublasLtMatrixLayout_t* l, cudaDataType_t type, int rows, int columns, int ld) {  // ours, row-major
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(l, type, columns, rows, ld));
  };
  layout(&plan.a, data_type<TIn>, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb);
  layout(&plan.b, data_type<TIn>, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda);
  layout(&plan.d, data_type<TOut>, p.m, p.n, p.ldd);
}

template <class TIn, class TOut>
void set_epilogue(Plan& plan, const Matmul<TIn, TOut>& p) {
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  if (plan.fused && p.epilogue == Epilogue::bias) epilogue = CUBLASLT_EPILOGUE_BIAS;
  if (plan.fused && p.epilogue == Epilogue::bias_gelu)
    epilogue = p.aux ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
  if (plan.fused && p.epilogue == Epilogue::dgelu) epilogue = CUBLASLT_EPILOGUE_DGELU;
  set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
  if (p.epilogue != Epilogue::dgelu) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type<TIn>);
  }
  if (epilogue != CUBLASLT_EPILOGUE_BIAS && epilogue != CUBLASLT_EPILOGUE_GELU_BIAS) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(p.ldd));
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, data_type<TIn>);
  }
}

template <class TIn, class TOut>
cublasStatus_t multiply(const Plan& plan, const Algorithm& algorithm, const Matmul<TIn, TOut>& p, TOut* d,
                        cudaStream_t stream) {
  float one = 1;
  return cublasLtMatmul(device().handle, plan.operation, &one, p.b, plan.a, p.a, plan.b, &p.beta, d, plan.d, d, plan.d,
                        &algorithm.opaque, device().workspace(stream), workspace_size, stream);
}

std::vector<Algorithm> candidates(const Plan& plan, uint32_t in_alignment, uint32_t out_alignment) {
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

template <class TIn, class TOut>
void apply_epilogue(const Matmul<TIn, TOut>& p, TOut* d, cudaStream_t stream) {
  if constexpr (std::is_same_v<TIn, TOut>)
    LAUNCH(epilogue_kernel<TOut>, dim3(blocks_for(p.n, 256), std::min(p.m, 65535)), dim3(256), 0, stream, d, p.bias,
           p.aux, p.m, p.n, p.ldd, p.epilogue == Epilogue::dgelu, p.epilogue == Epilogue::bias_gelu);
}

// The fastest candidate and its milliseconds, FAILED if none of them runs: the time of several products in a row, with
// our epilogue where the plan does not fuse it, as the median of several times; a first ranking, then the best few
// again.
template <class TIn, class TOut>
std::pair<float, Algorithm> fastest(const Plan& plan, const std::vector<Algorithm>& algorithms,
                                    const Matmul<TIn, TOut>& p, cudaStream_t stream) {
  TOut* d = p.d;
  void* spare = nullptr;
  if (p.beta != 0) {  // adding to D many times would change it; without memory for another D the heuristic decides
    if (cudaMalloc(&spare, size_t(p.m) * p.ldd * sizeof(TOut)) != cudaSuccess) {
      cudaGetLastError();
      return {0, algorithms[0]};
    }
    CUDA_CHECK(cudaMemsetAsync(spare, 0, size_t(p.m) * p.ldd * sizeof(TOut), stream));
    d = static_cast<TOut*>(spare);
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
        if (!plan.fused) apply_epilogue(p, d, stream);
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
    median(algorithms[i], 1, 1);  // for warmth
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

template <class TIn, class TOut>
Plan& find_plan(const Matmul<TIn, TOut>& p, cudaStream_t stream) {
  bool aligned = aligned16(p.a, p.b, p.d, p.bias, p.aux);
  Shape shape{int(data_type<TIn>),
              int(data_type<TOut>),
              p.m,
              p.n,
              p.k,
              p.trans_a,
              p.trans_b,
              p.lda,
              p.ldb,
              p.ldd,
              p.beta != 0,
              int(p.epilogue),
              p.aux != nullptr,
              aligned ? 16 : int(sizeof(TIn))};
  Plan& plan = device().plans[shape];
  if (!plan.operation) describe(plan, p);
  set_epilogue(plan, p);  // the pointers of this call
  if (plan.settled) return plan;

  // A fused epilogue wants its arrays at multiples of 16 bytes. In float GELU is always ours: what is recomputed for
  // the backward pass is then what the forward pass had, to the bit.
  bool gelu_in_float = std::is_same_v<TIn, float> && p.epilogue != Epilogue::none && p.epilogue != Epilogue::bias;
  bool fusible = p.epilogue == Epilogue::none || (aligned && !gelu_in_float);
  std::string key = device().key + shape_text(shape);
  if (auto known = choices.find(key); known != choices.end() && (fusible || !known->second.fused)) {
    plan.fused = known->second.fused;
    set_epilogue(plan, p);
    cublasLtMatmulHeuristicResult_t check;
    plan.settled = cublasLtMatmulAlgoCheck(device().handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                           &known->second.algorithm.opaque, &check) == CUBLAS_STATUS_SUCCESS &&
                   check.workspaceSize <= workspace_size;
    plan.algorithm = known->second.algorithm;
    if (plan.settled) return plan;
    choices.erase(known);  // written by something else: measured anew
  }
  float best = FAILED;
  Choice choice{};
  for (bool fused : {true, false}) {
    if (fused ? !fusible : p.epilogue == Epilogue::none) continue;
    plan.fused = fused;
    set_epilogue(plan, p);
    std::vector<Algorithm> algorithms = candidates(plan, shape.alignment, aligned ? 16 : sizeof(TOut));
    if (algorithms.empty()) continue;
    auto [time, algorithm] = fastest(plan, algorithms, p, stream);
    if (time < best) best = time, choice = {fused, algorithm};
  }
  if (best == FAILED) failure("cuBLASLt offers nothing for the product %s.", shape_text(shape).c_str());
  plan.fused = choice.fused;
  plan.algorithm = choice.algorithm;
  plan.settled = true;
  set_epilogue(plan, p);
  if (best == 0) return plan;  // nothing was measured: another run may be able to
  choices[key] = choice;
  append_to_cache(choice_line(key, choice));
  return plan;
}

}  // namespace

template <class TIn, class TOut>
void matmul(const Matmul<TIn, TOut>& given, cudaStream_t stream) {
  Matmul<TIn, TOut> p = given;
  check_matmul(p);
  if (p.m == 0 || p.n == 0) return;
  Plan& plan = find_plan(p, stream);
  {
    ProfileScope scope("matmul", stream);
    CUBLAS_CHECK(multiply(plan, plan.algorithm, p, p.d, stream));
  }
  if (!plan.fused) apply_epilogue(p, p.d, stream);
}

template void matmul(const Matmul<float, float>&, cudaStream_t);
template void matmul(const Matmul<bf16, bf16>&, cudaStream_t);
template void matmul(const Matmul<bf16, float>&, cudaStream_t);

void matmul_cache_file(const std::string& path) {
  cache_path = path;
  std::ifstream file(path);
  if (file) read_choices(file);
}

std::string matmul_choices() {
  std::string text;
  for (auto& [key, choice] : choices) text += choice_line(key, choice);
  return text;
}

void matmul_set_choices(const std::string& text) {
  std::istringstream in(text);
  read_choices(in);
  device().plans.clear();  // the next products look their choices up again
}

void matmul_workspace(size_t bytes) {
  CUDA_CHECK(cudaDeviceSynchronize());  // products may still use the memory
  for (auto& [stream, memory] : device().workspaces) CUDA_CHECK(cudaFree(memory));
  device().workspaces.clear();
  device().plans.clear();
  choices.clear();
  workspace_size = bytes;
}
