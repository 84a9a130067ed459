// Replaces cuBLASLt, after its documentation (docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API"): column-major D =
// alpha op(A) op(B) + beta C in float32, with the epilogues whose bias and auxiliary array run along D's rows.
// Algorithms are the caller's demands written down: cublasLtMatmul holds it to them.
#include <cublasLt.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <type_traits>
#include <vector>
#include "dev/ptx/floats.h"
#include "dev/ptx/options.h"
#include "dev/ptx/tensor_core.h"

namespace {

using ptx::bf16_of;
using ptx::float_of_bf16;

struct Description {
  std::map<int, std::vector<char>> attributes;
  template <class T> T get(int attribute, T otherwise) const {
    auto found = attributes.find(attribute);
    if (found == attributes.end()) return otherwise;
    T value;
    memcpy(&value, found->second.data(), sizeof value);
    return value;
  }
  int epilogue() const { return get(CUBLASLT_MATMUL_DESC_EPILOGUE, int(CUBLASLT_EPILOGUE_DEFAULT)); }
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch = 1;  // matrices, `apart` elements from one to the next
  int64_t apart = 0;
  template <class T> T* matrix(T* array, int n) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<Byte*>(array) + n * apart * (type == CUDA_R_32F ? 4 : 2);
  }
};
using Alignments = std::array<uint32_t, 4>;  // A, B, C, D
struct Preference {
  Alignments alignments = {256, 256, 256, 256};
  uint32_t schemes = ~0u;  // by which parts of k may be added up
};
struct Algorithm {
  static constexpr uint32_t MAGIC = 0x70747861;
  uint32_t magic;
  Alignments alignments;
  int epilogue;
  int rank;           // in the heuristic's list, so that all of them differ
  int parts, scheme;  // of k: 1 and CUBLASLT_REDUCTION_SCHEME_NONE if it is not divided
  // Parts of k are kept as float32 until they are added up.
  uint64_t workspace(const Layout& out) const { return parts > 1 ? 4 * parts * out.rows * out.columns * out.batch : 0; }
};

// The opaque handles are these.
const Description& description(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Description*>(handle); }
const Layout& layout(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<Layout*>(handle); }
Preference& preference_of(cublasLtMatmulPreference_t handle) { return *reinterpret_cast<Preference*>(handle); }

cublasStatus_t refused(const char* why) {
  fprintf(stderr, "ptx: cuBLASLt: %s\n", why);
  return CUBLAS_STATUS_INVALID_VALUE;
}

// The documentation's demands on an epilogue's arrays. Stricter than it: no attribute of another epilogue is set.
cublasStatus_t check_epilogue(const Description& d, const Layout& out) {
  constexpr int AUXILIARY = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU;
  const bool with_bias = d.epilogue() & CUBLASLT_EPILOGUE_BIAS, with_auxiliary = d.epilogue() & AUXILIARY;
  for (int attribute : {CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE}) {
    if (!with_bias && d.attributes.count(attribute)) return refused("a bias is set, and the epilogue adds none");
  }
  for (int attribute : {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE}) {
    if (!with_auxiliary && d.attributes.count(attribute)) {
      return refused("an auxiliary array is set, and the epilogue has none");
    }
  }
  if (!with_auxiliary) return CUBLAS_STATUS_SUCCESS;
  const int type = d.get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, int(out.type));
  if (type != CUDA_R_16BF && type != CUDA_R_16F) return refused("an auxiliary array that is not of 16 bits");
  const int64_t leading = d.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
  if (leading % 8 || leading < int64_t(out.rows)) {
    return refused("the auxiliary array's leading dimension is below the rows or not a multiple of 8");
  }
  if (d.get<uint64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 0) % 16) {
    return refused("the auxiliary array is not at a multiple of 16 bytes");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_parts(const Algorithm& algorithm) {
  if (algorithm.parts < 1 || (algorithm.parts == 1) != (algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_NONE)) {
    return refused("parts of k and their reduction do not fit");
  }
  // Stricter than the documentation: the others round each part to the output's type.
  const bool exact = algorithm.parts == 1 || algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  return exact ? CUBLAS_STATUS_SUCCESS : refused("parts of k that are not added up in float32");
}

float load(const void* array, size_t i, cudaDataType_t type) {
  if (type == CUDA_R_32F) return static_cast<const float*>(array)[i];
  return float_of_bf16(static_cast<const uint16_t*>(array)[i]);
}
void store(void* array, size_t i, cudaDataType_t type, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(array)[i] = value;
  } else {
    static_cast<uint16_t*>(array)[i] = bf16_of(value);
  }
}

constexpr double SQRT_2_OVER_PI = 0.7978845608028654, CUBIC = 0.044715;
double gelu(double x) { return 0.5 * x * (1 + std::tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))); }
double gelu_derivative(double x) {
  const double t = std::tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}

// op(A)'s rows, or op(B)'s columns, one after the other.
std::vector<float> vectors(const void* array, const Layout& from, uint64_t count, uint64_t depth, bool depth_is_rows) {
  std::vector<float> dense(count * depth);
  for (uint64_t i = 0; i < count; i++) {
    for (uint64_t k = 0; k < depth; k++) {
      const uint64_t at = depth_is_rows ? k + i * from.leading : i + k * from.leading;
      dense[i * depth + k] = load(array, at, from.type);
    }
  }
  return dense;
}

// No better than the tensor cores that the real one uses: bf16 in steps of theirs, one after the other.
float tensor_core_dot(const float* a, const float* b, uint64_t n) {
  float sum = 0;
  for (uint64_t first = 0; first < n; first += ptx::CORE_DEPTH) {
    float left[ptx::CORE_DEPTH] = {};
    std::copy_n(a + first, std::min<uint64_t>(ptx::CORE_DEPTH, n - first), left);
    const ptx::RightOperand right(1, [&](int k, int) { return first + k < n ? b[first + k] : 0.0f; });
    right.multiply_add(left, &sum);
  }
  return sum;
}

float dot(const float* a, const float* b, uint64_t n) {
  constexpr int PARTS = 8;  // sums side by side, which the compiler makes one vector
  float sums[PARTS] = {};
  uint64_t i = 0;
  for (; i + PARTS <= n; i += PARTS) {
    for (int part = 0; part < PARTS; part++) sums[part] += a[i + part] * b[i + part];
  }
  for (; i < n; i++) sums[0] += a[i] * b[i];
  float sum = 0;
  for (float part : sums) sum += part;
  return sum;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static char nothing;
  *handle = reinterpret_cast<cublasLtHandle_t>(&nothing);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "refused by the replacement for cuBLASLt"; }
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return refused("only float32 sums and scales");
  *d = reinterpret_cast<cublasLtMatmulDesc_t>(new Description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete &description(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  const bool wide = attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ||
                    attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ||
                    attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
  if (bytes != (wide ? 8 : 4)) return refused("an attribute of another size");
  const char* begin = static_cast<const char*>(value);
  reinterpret_cast<Description*>(d)->attributes[attribute].assign(begin, begin + bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  if (leading < int64_t(rows)) return refused("a leading dimension below the rows");
  *out = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  Layout& l = *reinterpret_cast<Layout*>(handle);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof l.batch) memcpy(&l.batch, value, bytes);
  else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof l.apart)
    memcpy(&l.apart, value, bytes);
  else return refused("a part of a layout that is not known, or of another size");
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete &layout(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  *out = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  delete &preference_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  if (bytes != (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4)) {
    return refused("a preference of another size");
  }
  static constexpr int ARRAYS[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (int i = 0; i < 4; i++) {
    if (int(attribute) == ARRAYS[i]) memcpy(&preference_of(handle).alignments[i], value, 4);
  }
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) memcpy(&preference_of(handle).schemes, value, 4);
  return CUBLAS_STATUS_SUCCESS;
}

// The first of two algorithms divides a long k, if its parts may be added up in float32.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t D_handle, cublasLtMatmulPreference_t preference,
                                              int most, cublasLtMatmulHeuristicResult_t* results, int* count) {
  constexpr uint64_t LONG = 1024;
  *count = 0;
  if (cublasStatus_t status = check_epilogue(description(d), layout(D_handle))) return status;
  const bool transposed = description(d).get(CUBLASLT_MATMUL_DESC_TRANSA, int(CUBLAS_OP_N)) == CUBLAS_OP_T,
             may_divide = preference_of(preference).schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const uint64_t depth = transposed ? layout(a).rows : layout(a).columns;
  for (; *count < std::min(most, 2); ++*count) {
    const bool divided = *count == 0 && may_divide && depth >= LONG;
    const Algorithm algorithm = {
        Algorithm::MAGIC,          preference_of(preference).alignments,
        description(d).epilogue(), *count,
        divided ? 2 : 1,           divided ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE};
    cublasLtMatmulHeuristicResult_t& result = results[*count];
    result = {};
    memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t D_handle,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  Algorithm algorithm;
  memcpy(&algorithm, algo, sizeof algorithm);
  *result = {};
  if (algorithm.magic != Algorithm::MAGIC) return CUBLAS_STATUS_INVALID_VALUE;
  if (cublasStatus_t status = check_parts(algorithm)) return status;
  result->workspaceSize = algorithm.workspace(layout(D_handle));
  return check_epilogue(description(d), layout(D_handle));
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* buffer,
                                                    size_t bytes, size_t* written) {
  const bool is_parts = attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM;
  if ((!is_parts && attribute != CUBLASLT_ALGO_CONFIG_ID) || bytes != 4) {
    return refused("a part of an algorithm that is not known");
  }
  Algorithm algorithm;
  memcpy(&algorithm, algo, sizeof algorithm);
  memcpy(buffer, is_parts ? &algorithm.parts : &algorithm.rank, *written = 4);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d_handle, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t A_handle, const void* B, cublasLtMatrixLayout_t B_handle,
                              const void* beta, const void* C, cublasLtMatrixLayout_t C_handle, void* D,
                              cublasLtMatrixLayout_t D_handle, const cublasLtMatmulAlgo_t* algo, void*,
                              size_t workspace_bytes, cudaStream_t) {
  const Description& d = description(d_handle);
  const Layout &a = layout(A_handle), &b = layout(B_handle), &c = layout(C_handle), &out = layout(D_handle);
  Algorithm algorithm;
  memcpy(&algorithm, algo, sizeof algorithm);
  const void* arrays[] = {A, B, C, D};
  for (int i = 0; i < 4; i++) {
    if (reinterpret_cast<uint64_t>(arrays[i]) % algorithm.alignments[i]) {
      return refused("an array is less aligned than was said when the algorithm was asked for");
    }
  }
  if (cublasStatus_t status = check_epilogue(d, out)) return status;
  const int epilogue = d.epilogue();
  if (algorithm.epilogue != epilogue) return refused("the algorithm of another epilogue");
  if (cublasStatus_t status = check_parts(algorithm)) return status;
  if (workspace_bytes < algorithm.workspace(out)) return refused("a workspace too small for the algorithm");
  const bool transpose_a = d.get(CUBLASLT_MATMUL_DESC_TRANSA, int(CUBLAS_OP_N)) == CUBLAS_OP_T;
  const bool transpose_b = d.get(CUBLASLT_MATMUL_DESC_TRANSB, int(CUBLAS_OP_N)) == CUBLAS_OP_T;
  const uint64_t rows = out.rows, columns = out.columns, depth = transpose_a ? a.rows : a.columns;
  if ((transpose_a ? a.columns : a.rows) != rows || (transpose_b ? b.rows : b.columns) != columns ||
      (transpose_b ? b.columns : b.rows) != depth || c.rows != rows || c.columns != columns) {
    return refused("shapes that do not fit");
  }
  if (a.batch != out.batch || b.batch != out.batch || c.batch != out.batch) return refused("batches that do not fit");
  if (out.batch > 1 && out.apart < out.leading * int64_t(columns)) return refused("matrices of a batch that overlap");
  const bool with_gelu = epilogue == CUBLASLT_EPILOGUE_GELU_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const bool with_bias = with_gelu || epilogue == CUBLASLT_EPILOGUE_BIAS;
  const bool keeps = epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS, derives = epilogue == CUBLASLT_EPILOGUE_DGELU;
  if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && !with_bias && !derives) return CUBLAS_STATUS_NOT_SUPPORTED;

  void* bias = reinterpret_cast<void*>(d.get<uint64_t>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0));
  void* auxiliary = reinterpret_cast<void*>(d.get<uint64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 0));
  const auto bias_type = cudaDataType_t(d.get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int(out.type)));
  const auto auxiliary_type = cudaDataType_t(d.get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, int(out.type)));
  const int64_t auxiliary_leading = d.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);

  const auto product = a.type == CUDA_R_16BF && b.type == CUDA_R_16BF ? tensor_core_dot : dot;
  // The last column lacks the last part of k, the bias or the derivative.
  const bool wrong = ptx::options().wrong_products && algorithm.rank == 0;
  for (int n = 0; n < out.batch; n++) {
    const std::vector<float> left = vectors(a.matrix(A, n), a, rows, depth, transpose_a);
    const std::vector<float> right = vectors(b.matrix(B, n), b, columns, depth, !transpose_b);
    for (uint64_t column = 0; column < columns; column++) {
      const bool wrong_here = wrong && column == columns - 1;
      for (uint64_t row = 0; row < rows; row++) {
        const uint64_t beside = row + column * auxiliary_leading;
        float value = 0;
        for (uint64_t part = 0; part < uint64_t(algorithm.parts); part++) {
          if (wrong_here && part > 0 && part == uint64_t(algorithm.parts) - 1) break;
          const uint64_t begin = depth * part / algorithm.parts, end = depth * (part + 1) / algorithm.parts;
          value += product(&left[row * depth + begin], &right[column * depth + begin], end - begin);
        }
        value *= scale;
        if (keep != 0) value += keep * load(c.matrix(C, n), row + column * c.leading, c.type);
        if (with_bias && !wrong_here) value += load(bias, row, bias_type);
        if (keeps) store(auxiliary, beside, auxiliary_type, value);
        if (with_gelu) value = float(gelu(value));
        if (derives && !wrong_here) value = float(value * gelu_derivative(load(auxiliary, beside, auxiliary_type)));
        store(out.matrix(D, n), row + column * out.leading, out.type, value);
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
