// What the CPU layer costs: launches, threads that never wait, meetings, fragment products. Prints a table; best of
// many runs. `make build/cpu/bench_cpu_layer && build/cpu/bench_cpu_layer [threads]`; on a GPU it means little.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include "kernels/gpu.cuh"
#ifdef PLUSGPT_CPU
#include "kernels/hopper.cuh"
#endif

namespace {

template <class T> __global__ void axpy(T* y, const T* x, float a, int n) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * Pack<T>::size;
  if (i >= n) return;
  Pack<T> px = load16(x + i), py = load16(y + i);
  for (int k = 0; k < Pack<T>::size; ++k) py[k] = from_float<T>(to_float(py[k]) + a * to_float(px[k]));
  store16(y + i, py);
}
__global__ void nothing() {}
__global__ void wait_for_warp(int times) {
  for (int i = 0; i < times; ++i) warp_sync();
}
__global__ void wait_for_block(int times) {
  for (int i = 0; i < times; ++i) __syncthreads();
}
__global__ void reverse(float* x, int times) {  // barriers at two lines, as most kernels have them
  __shared__ float tile[256];
  int t = threadIdx.x;
  float v = x[t];
  for (int i = 0; i < times; ++i) {
    tile[t] = v;
    __syncthreads();
    v = tile[255 - t];
    __syncthreads();
  }
  x[t] = v;
}
template <int which> __global__ void exchange(float* x, int times) {
  float v = x[threadIdx.x], several[4] = {v, v, v, v};
  for (int i = 0; i < times; ++i) {
    if (which == 0) v = shuffle_xor(v, 1);
    if (which == 1) v = warp_sum(v) * 0.03125f;
    if (which == 2) warp_max(several);
  }
  x[threadIdx.x] = v + several[0];
}
template <int M, int N, class T> __global__ void multiply(float* x, int times) {
  float d[M][N][4] = {};
  unsigned a[M][4] = {}, b[N][2] = {};
  for (int i = 0; i < times; ++i) mma_m16n8k16(d, a, b, TypeTag<T>());
  x[threadIdx.x] = d[0][0][0];
}
template <bool transposed> __global__ void load_matrices(float* x, int times) {
  __shared__ __align__(16) unsigned short tile[4][32 * 8];
  const void* rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = &tile[i][8 * threadIdx.x];
  unsigned r[4][4] = {};
  for (int i = 0; i < times; ++i) {
    if (transposed) ldmatrix_x4_trans(r, rows);
    else ldmatrix_x4(r, rows);
  }
  x[threadIdx.x] = static_cast<float>(r[0][0]);
}

template <class F> double best_seconds(F f) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    auto begin = std::chrono::steady_clock::now();
    f();
    CUDA_CHECK(cudaDeviceSynchronize());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}
void report(const char* what, double value, const char* unit) { printf("%-52s %9.2f %s\n", what, value, unit); }

template <int M, int N, class T> void report_mma(const char* what, float* x, int blocks) {
  constexpr int times = 300;
  double s = best_seconds([&] { LAUNCH((multiply<M, N, T>), blocks, WARP, 0, nullptr, x, times); });
  report(what, 2.0 * 16 * 8 * 16 * M * N * times * blocks / s * 1e-9, "GFLOP/s");
}

#ifdef PLUSGPT_CPU
// groups of `depth` / 16 products
template <int TILES, bool FROM_REGISTERS> __global__ void multiply_together(float* x, int times, int depth) {
  DYNAMIC_SHARED(bf16, tiles);
  float d[TILES][4] = {};
  unsigned a[4] = {};
  for (int i = 0; i < times; ++i) {
    wgmma_fence();
    for (int k = 0; k < depth / 16; ++k) {
      if constexpr (FROM_REGISTERS) wgmma(d, a, columns_operand(tiles, 64 * TILE_ROW_BYTES) + 128 * (k % 4));
      else wgmma(d, rows_operand(tiles) + 2 * (k % 4), rows_operand(tiles) + 2 * (k % 4), true);
    }
    wgmma_commit();
    wgmma_wait<0>(d);
  }
  x[threadIdx.x] = d[0][0];
}
template <int TILES, bool FROM_REGISTERS> void report_wgmma(const char* what, float* x, int blocks, int depth) {
  constexpr int times = 50;
  double s = best_seconds([&] {
    LAUNCH((multiply_together<TILES, FROM_REGISTERS>), blocks, WARPGROUP, 128 * TILE_ROW_BYTES, nullptr, x, times,
           depth);
  });
  report(what, 2.0 * 64 * 8 * TILES * depth * times * blocks / s * 1e-9, "GFLOP/s");
}
#endif

}  // namespace

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  set_cpu_threads(threads);
  constexpr int n = 1 << 16;
  float *x, *y;
  CUDA_CHECK(cudaMalloc(&x, n * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&y, n * sizeof(float)));
  CUDA_CHECK(cudaMemset(x, 0, n * sizeof(float)));
  CUDA_CHECK(cudaMemset(y, 0, n * sizeof(float)));
  printf("%d worker%s\n", threads, threads == 1 ? "" : "s");
  // scale: the unit's number in a second, over what is measured of one kind in a run
  auto measure = [](const char* what, double scale, const char* unit, auto run) {
    report(what, best_seconds(run) * scale, unit);
  };
  measure("launch of one block", 1e9 / 100, "ns", [&] {
    for (int i = 0; i < 100; ++i) LAUNCH(nothing, 1, 1, 0, nullptr);
  });
  measure("launch of 64 blocks", 1e9 / 100, "ns", [&] {
    for (int i = 0; i < 100; ++i) LAUNCH(nothing, 64, 1, 0, nullptr);
  });
  measure("a thread that does nothing", 1e9 / 256000, "ns", [&] { LAUNCH(nothing, 1000, 256, 0, nullptr); });
  measure("a thread of axpy, 4 floats", 1e9 / (n / 4), "ns",
          [&] { LAUNCH(axpy<float>, n / 1024, 256, 0, nullptr, y, x, 2.0f, n); });
  bf16 *x16 = reinterpret_cast<bf16*>(x), *y16 = reinterpret_cast<bf16*>(y);
  measure("a thread of axpy, 8 bf16", 1e9 / (n / 8), "ns",
          [&] { LAUNCH(axpy<bf16>, n / 2048, 256, 0, nullptr, y16, x16, 2.0f, n); });
  measure("first wait of a thread", 1e9 / 256000, "ns", [&] { LAUNCH(wait_for_warp, 1000, 256, 0, nullptr, 1); });
  measure("each further wait for the warp", 1e9 / 32000 / threads, "ns",
          [&] { LAUNCH(wait_for_warp, threads, WARP, 0, nullptr, 1000); });
  measure("__syncthreads of 256 threads, at one line", 1e6 / 200, "us",
          [&] { LAUNCH(wait_for_block, 1, 256, 0, nullptr, 200); });
  measure("__syncthreads of 256 threads, at two lines", 1e6 / 200, "us",
          [&] { LAUNCH(reverse, 1, 256, 0, nullptr, x, 100); });
  auto measure_warp = [&](const char* what, auto kernel) {
    measure(what, 1e6 / 1000, "us", [&] { LAUNCH(kernel, 1, WARP, 0, nullptr, x, 1000); });
  };
  measure_warp("shuffle of a warp", exchange<0>);
  measure_warp("warp_sum of one number", exchange<1>);
  measure_warp("warp_max of four numbers", exchange<2>);
  measure_warp("ldmatrix of 4 x 4 matrices", load_matrices<false>);
  measure_warp("ldmatrix of 4 x 4 matrices, transposed", load_matrices<true>);
  report_mma<1, 1, bf16>("mma m16n8k16 bf16, 1 tile", x, threads);
  report_mma<1, 8, bf16>("mma m16n8k16 bf16, 1 x 8 tiles", x, threads);
  report_mma<2, 8, bf16>("mma m16n8k16 bf16, 2 x 8 tiles", x, threads);
#ifdef PLUSGPT_CPU
  report_wgmma<8, false>("wgmma n64, tiles, groups of k 64", x, threads, 64);
  report_wgmma<16, false>("wgmma n128, tiles, groups of k 128", x, threads, 128);
  report_wgmma<8, true>("wgmma n64, registers, groups of k 64", x, threads, 64);
  report_wgmma<16, true>("wgmma n128, registers, groups of k 128", x, threads, 128);
#endif
  CUDA_CHECK(cudaFree(x));
  CUDA_CHECK(cudaFree(y));
}
