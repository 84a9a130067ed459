// The portability header: everything a kernel needs beyond plain CUDA C++, on a GPU (nvcc; all PTX but hopper.cuh's)
// and on the CPU layer (g++ with -Iemulation; emulation/device.h has that half). Kernels include this and
// contain no #ifdef. All 32 lanes of a warp execute a warp operation together, at the same line. Warp operations take
// several tiles at once: a GPU unrolls them into the same instructions, and the CPU layer stops the warp only once.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>
#include "base/error.h"
#include "kernels/profile.h"

using bf16 = __nv_bfloat16;
constexpr int WARP = 32;

// Host side -----------------------------------------------------------------------------------------------------------

// An error of a kernel is reported by a later call, whatever that is, and by every call after it. which: the kernels
// that may have caused it.
inline std::string cuda_error_text(cudaError_t error, const char* which) {
  bool of_a_kernel = error == cudaErrorIllegalAddress || error == cudaErrorLaunchTimeout || error == cudaErrorAssert ||
                     (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
  return cudaGetErrorString(error) +
         (of_a_kernel ? format(", in %s (CUDA_LAUNCH_BLOCKING=1 tells which)", which) : std::string());
}
inline void cuda_check(cudaError_t error, const char* what, const char* file, int line) {
  if (error != cudaSuccess)
    failure("%s failed at %s:%d: %s", what, file, line, cuda_error_text(error, "a kernel before it").c_str());
}
#define CUDA_CHECK(expression) cuda_check((expression), #expression, __FILE__, __LINE__)

// Set before a plan for a GPU that is not here: no device is asked then, so the plan is the same on every machine.
inline bool device_is_elsewhere = false;

// Properties of the current device. PyTorch (pytorch/) may use several: each is asked once.
inline const cudaDeviceProp& device_properties() {
  static std::mutex mutex;
  static std::map<int, cudaDeviceProp> properties;
  int device = -1;
  if (!device_is_elsewhere) CUDA_CHECK(cudaGetDevice(&device));
  std::lock_guard lock(mutex);
  if (auto known = properties.find(device); known != properties.end()) return known->second;
  cudaDeviceProp p = {};
  p.major = 8, p.multiProcessorCount = 132;
  if (device >= 0) CUDA_CHECK(cudaGetDeviceProperties(&p, device));
  return properties[device] = p;
}

// cudaErrorNoKernelImageForDevice if this program was not compiled for the current device (kernels/reduce.cu).
cudaError_t load_a_kernel();

// LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...) is the only way to start a kernel. Names with commas
// take parentheses: LAUNCH((k<float, 4>), ...). Throws Failure with the kernel's name.
#define LAUNCH(kernel, ...) launch_kernel(#kernel, kernel, __VA_ARGS__)

// Only the CPU layer can vary these; a GPU ignores all three. Results must not depend on them.
enum class CpuOrder { forward, reverse, random };
void set_cpu_threads(int n);                      // OS threads that run kernels; n < 1: one per core
int cpu_threads();                                // their number
void set_cpu_order(CpuOrder, unsigned seed = 1);  // of blocks, warps and lanes
void set_cpu_poison(bool on);                     // NaN in shared memory before each block and in new device memory

// Both sides ----------------------------------------------------------------------------------------------------------

// Conversions round to nearest even; NaN stays NaN.
__host__ __device__ inline float to_float(float v) { return v; }
__host__ __device__ inline float to_float(bf16 v) { return __bfloat162float(v); }
template <class T> __host__ __device__ T from_float(float v);
template <> __host__ __device__ inline float from_float<float>(float v) { return v; }
template <> __host__ __device__ inline bf16 from_float<bf16>(float v) { return __float2bfloat16_rn(v); }

// The elements of one 16-byte access. load16, store16: the address must be a multiple of 16.
template <class T> struct alignas(16) Pack {
  static constexpr int size = 16 / sizeof(T);
  T x[size];
  __host__ __device__ T& operator[](int i) { return x[i]; }
  __host__ __device__ const T& operator[](int i) const { return x[i]; }
};
template <class T> __device__ inline Pack<T> load16(const T* p) { return *reinterpret_cast<const Pack<T>*>(p); }
template <class T> __device__ inline void store16(T* p, const Pack<T>& v) { *reinterpret_cast<Pack<T>*>(p) = v; }

#ifdef PLUSGPT_CPU
#include "emulation/device.h"
#else
constexpr bool on_cpu = false;
#define CPU_OUT_OF_LINE __forceinline__  // large functions that a CPU calls, so that each caller compiles faster
inline void set_cpu_threads(int) {}
inline int cpu_threads() { return 1; }
inline void set_cpu_order(CpuOrder, unsigned) {}
inline void set_cpu_poison(bool) {}
#endif

#ifdef __CUDACC__

template <class... P> cudaError_t load_kernel(void (*kernel)(P...)) {
  cudaFuncAttributes a;
  return cudaFuncGetAttributes(&a, kernel);
}

template <class... P> KernelResources resources_of(void (*kernel)(P...), dim3 block, size_t shared_bytes) {
  cudaFuncAttributes a;
  KernelResources r;
  r.threads = static_cast<int>(block.x * block.y * block.z);
  if (cudaFuncGetAttributes(&a, kernel) != cudaSuccess) return r;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&r.blocks, kernel, r.threads, shared_bytes);
  r.registers = a.numRegs, r.spilled = static_cast<int>(a.localSizeBytes);
  r.shared = static_cast<int>(a.sharedSizeBytes + shared_bytes);
  return r;
}

// Parameters and arguments are two packs, so that an int can be passed where the kernel takes a size_t.
template <class... P, class... A>
void launch_kernel(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
  if (shared_bytes > 48 * 1024) {  // more than this a kernel has to request
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();  // clears it: the next launch would report it again
      failure("kernel %s: %zu bytes of shared memory were refused: %s", name, shared_bytes,
              cuda_error_text(error, "a kernel before this one").c_str());
    }
  }
  KernelResources resources;
  if (profile_on) resources = resources_of(kernel, block, shared_bytes);  // before the clock runs
  resources.launched = static_cast<int>(grid.x * grid.y * grid.z);
  ProfileScope scope(name, stream, resources);
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<P>(std::forward<A>(arguments))...);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    failure("kernel %s: launch of %u x %u x %u blocks of %u x %u x %u threads, %zu bytes of shared memory, failed: %s",
            name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
            cuda_error_text(error, "this kernel or one before it").c_str());
}

// DYNAMIC_SHARED(type, name): `type* name` to the block's dynamic shared memory, always to its beginning.
#define DYNAMIC_SHARED(type, name)                               \
  extern __shared__ __align__(1024) char dynamic_shared_bytes[]; \
  type* name = reinterpret_cast<type*>(dynamic_shared_bytes)

// a[r][e] += the sum over n < count of one[r stride + n step] many[n many_step + e], term by term in the order of n, by
// fmaf. many and many_step: multiples of 4 floats.
template <int R, int E>
__device__ __forceinline__ void add_products(float (&a)[R][E], int count, const float* one, int stride, int step,
                                             const float* many, int many_step) {
#pragma unroll 2
  for (int n = 0; n < count; n++) {
    float v[E];
    for (int e = 0; e < E; e += 4) {
      Pack<float> pack = load16(many + n * many_step + e);
      for (int k = 0; k < 4; k++) v[e + k] = pack[k];
    }
    for (int r = 0; r < R; r++) {
      float s = one[r * stride + n * step];
      for (int e = 0; e < E; e++) a[r][e] = fmaf(s, v[e], a[r][e]);
    }
  }
}

// T: float, int or unsigned. shuffle_up before the warp's first lane returns the lane's own value.
constexpr unsigned all_lanes = 0xffffffffu;
template <class T> __device__ inline T shuffle(T v, int lane) { return __shfl_sync(all_lanes, v, lane); }
template <class T> __device__ inline T shuffle_xor(T v, int mask) { return __shfl_xor_sync(all_lanes, v, mask); }
template <class T> __device__ inline T shuffle_up(T v, int delta) { return __shfl_up_sync(all_lanes, v, delta); }
__device__ inline unsigned warp_ballot(bool v) { return __ballot_sync(all_lanes, v); }
__device__ inline void warp_sync() { __syncwarp(); }

// Every lane gets the result, with the same bits: a butterfly over lane distances 16, 8, 4, 2, 1. warp_max ignores NaN,
// as fmaxf does.
template <int X> __device__ inline void warp_sum(float (&v)[X]) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2)
#pragma unroll
    for (int i = 0; i < X; ++i) v[i] += shuffle_xor(v[i], mask);
}
template <int X> __device__ inline void warp_max(float (&v)[X]) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2)
#pragma unroll
    for (int i = 0; i < X; ++i) v[i] = fmaxf(v[i], shuffle_xor(v[i], mask));
}
__device__ inline float warp_sum(float v) {
  float one[1] = {v};
  warp_sum(one);
  return one[0];
}
__device__ inline float warp_max(float v) {
  float one[1] = {v};
  warp_max(one);
  return one[0];
}

// Each group of four neighbouring lanes gets its largest value.
template <int X> __device__ inline void quad_max(float (&v)[X]) {
#pragma unroll
  for (int mask = 2; mask > 0; mask /= 2)
#pragma unroll
    for (int i = 0; i < X; ++i) v[i] = fmaxf(v[i], shuffle_xor(v[i], mask));
}

// Two floats rounded to bf16 in one register, the first in the low half.
__device__ inline unsigned pack_pair(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  unsigned bits;
  memcpy(&bits, &pair, 4);
  return bits;
}

// D[i][j] += A[i] B[j] for M x N tiles of 16 x 8, with A[i] 16 x 16 and B[j] 16 x 8 of bf16, and float32
// sums. With g = lane / 4, q = lane % 4, two 16-bit elements to a register, the lower row or column in the low half:
//   a[r]: row g + 8 (r % 2), columns 2q + 8 (r / 2) and the next    b[r]: rows 2q + 8r and the next, column g
//   d[r]: row g + 8 (r / 2), column 2q + r % 2
__device__ inline void mma_one_tile(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <int M, int N>
__device__ inline void mma_m16n8k16(float (&d)[M][N][4], const unsigned (&a)[M][4], const unsigned (&b)[N][2]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) mma_one_tile(d[i][j], a[i], b[j]);
}

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// X times four 8 x 8 matrices of 16-bit elements from shared memory. Lane 8i + j gives the address (a multiple of 16)
// of row j of matrix i; with g = lane / 4, q = lane % 4 the lane gets in r[x][i] row g, columns 2q and 2q + 1 of
// matrix i; _trans: column g, rows 2q and 2q + 1.
template <int X> __device__ inline void ldmatrix_x4(unsigned (&r)[X][4], const void* const (&row)[X]) {
#pragma unroll
  for (int x = 0; x < X; ++x)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[x][0]), "=r"(r[x][1]), "=r"(r[x][2]), "=r"(r[x][3])
                 : "r"(shared_address(row[x]))
                 : "memory");
}
template <int X> __device__ inline void ldmatrix_x4_trans(unsigned (&r)[X][4], const void* const (&row)[X]) {
#pragma unroll
  for (int x = 0; x < X; ++x)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[x][0]), "=r"(r[x][1]), "=r"(r[x][2]), "=r"(r[x][3])
                 : "r"(shared_address(row[x]))
                 : "memory");
}

// Copies 16 bytes from global to shared memory asynchronously; valid = false writes zeros and reads nothing. Copies
// since the last commit form a group; wait<N> returns when all but the newest N groups of this thread have arrived.
__device__ inline void cp_async16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Kernels call expf, logf, fmaxf and fminf by those names: on the CPU emulation/libm.h inlines and vectorises them
// (but not tanhf, erff, powf, which are calls). The fast ones are for loops bound by a GPU's special-function unit: one
// or two instructions there. Relative errors: fast_exp2 2^-22 (and 0 below 2^-126), fast_exp |x| 2^-23 more,
// fast_reciprocal 2^-23, fast_log2 2^-22 (near 1 an absolute error; -inf below 2^-126).
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_exp(float x) { return fast_exp2(x * 1.44269504f); }
// x cut to [0, 1], as part of the instruction that computes x.
__device__ inline float saturate(float x) { return __saturatef(x); }

#endif
