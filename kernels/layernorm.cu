#include "kernels/layernorm.cuh"

#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

// A warp holds ROWS rows of up to 32 x PACKS 16-byte packs in registers. Several rows at once keep more bytes in flight when
// rows are short, and on the CPU layer share one meeting.

constexpr int LN_WARPS = 4;

// The column of a lane's p-th pack.
template <class T>
__device__ inline int pack_column(int p) {
  return (p * WARP + int(threadIdx.x) % WARP) * Pack<T>::size;
}

// ---- forward ---------------------------------------------------------------------------------------------------------------

template <class T>
__device__ inline Pack<T> add_packs(const Pack<T>& a, const Pack<T>& b) {
  Pack<T> sum;
#pragma unroll
  for (int k = 0; k < Pack<T>::size; k++) sum[k] = from_float<T>(to_float(a[k]) + to_float(b[k]));
  return sum;
}

template <class T>
__device__ inline void normalize_pack(T* out, const Pack<T>& x, float mean, float rstd, const T* gamma, const T* beta) {
  Pack<T> g = load16(gamma), b = load16(beta), y;
#pragma unroll
  for (int k = 0; k < Pack<T>::size; k++)
    y[k] = from_float<T>((to_float(x[k]) - mean) * rstd * to_float(g[k]) + to_float(b[k]));
  store16(out, y);
}

// residual == nullptr: normalizes x. Otherwise sum = x + residual is written and normalized.
template <class T, int PACKS, int ROWS>
__global__ void __launch_bounds__(LN_WARPS* WARP)
    layernorm_forward_kernel(T* sum, T* out, float* mean, float* rstd, const T* x, const T* residual, const T* __restrict__ gamma,
                             const T* __restrict__ beta, int N, int C) {
  int lane = threadIdx.x % WARP, groups = gridDim.x * LN_WARPS;
  for (int first = (blockIdx.x * LN_WARPS + threadIdx.x / WARP) * ROWS; first < N; first += groups * ROWS) {
    Pack<T> v[ROWS][PACKS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int p = 0; p < PACKS; p++)
        v[r][p] = first + r < N && pack_column<T>(p) < C ? load16(x + size_t(first + r) * C + pack_column<T>(p)) : Pack<T>{};
    if (residual) {
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
          if (first + r >= N || pack_column<T>(p) >= C) continue;
          size_t at = size_t(first + r) * C + pack_column<T>(p);
          v[r][p] = add_packs(v[r][p], load16(residual + at));
          store16(sum + at, v[r][p]);
        }
    }
    float means[ROWS] = {}, squares[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int p = 0; p < PACKS; p++)
        for (int k = 0; k < Pack<T>::size; k++) means[r] += to_float(v[r][p][k]);
    warp_sum(means);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      means[r] /= C;
#pragma unroll
      for (int p = 0; p < PACKS; p++) {
        if (pack_column<T>(p) >= C) continue;
        for (int k = 0; k < Pack<T>::size; k++) {
          float d = to_float(v[r][p][k]) - means[r];
          squares[r] += d * d;
        }
      }
    }
    warp_sum(squares);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      int row = first + r;
      if (row >= N) break;
      float inverse = 1.0f / sqrtf(squares[r] / C + LAYERNORM_EPS);
      if (lane == 0 && mean) {
        mean[row] = means[r];
        rstd[row] = inverse;
      }
#pragma unroll
      for (int p = 0; p < PACKS; p++) {
        int c = pack_column<T>(p);
        if (c < C) normalize_pack(out + size_t(row) * C + c, v[r][p], means[r], inverse, gamma + c, beta + c);
      }
    }
  }
}

// Rows that do not fit into registers are read again for each pass, from the cache.
template <class T>
__global__ void __launch_bounds__(LN_WARPS* WARP)
    layernorm_forward_wide_kernel(T* sum, T* out, float* mean, float* rstd, const T* x, const T* residual,
                                  const T* __restrict__ gamma, const T* __restrict__ beta, int N, int C) {
  int lane = threadIdx.x % WARP, warps = gridDim.x * LN_WARPS, step = WARP * Pack<T>::size;
  for (int row = blockIdx.x * LN_WARPS + threadIdx.x / WARP; row < N; row += warps) {
    const T* from = x + size_t(row) * C;
    float total[1] = {}, square[1] = {};
    for (int c = pack_column<T>(0); c < C; c += step) {
      Pack<T> v = load16(from + c);
      if (residual) {
        v = add_packs(v, load16(residual + size_t(row) * C + c));
        store16(sum + size_t(row) * C + c, v);
      }
      for (int k = 0; k < Pack<T>::size; k++) total[0] += to_float(v[k]);
    }
    if (residual) from = sum + size_t(row) * C;   // each thread reads back what it wrote itself
    warp_sum(total);
    float m = total[0] / C;
    for (int c = pack_column<T>(0); c < C; c += step) {
      Pack<T> v = load16(from + c);
      for (int k = 0; k < Pack<T>::size; k++) {
        float d = to_float(v[k]) - m;
        square[0] += d * d;
      }
    }
    warp_sum(square);
    float inverse = 1.0f / sqrtf(square[0] / C + LAYERNORM_EPS);
    if (lane == 0 && mean) {
      mean[row] = m;
      rstd[row] = inverse;
    }
    for (int c = pack_column<T>(0); c < C; c += step)
      normalize_pack(out + size_t(row) * C + c, load16(from + c), m, inverse, gamma + c, beta + c);
  }
}

template <class T, int PACKS, int ROWS>
static void launch_forward(T* sum, T* out, float* mean, float* rstd, const T* x, const T* residual, const T* gamma, const T* beta,
                           int N, int C, cudaStream_t stream) {
  launch((layernorm_forward_kernel<T, PACKS, ROWS>), dim3(looping_blocks(N, LN_WARPS * ROWS, 16)), dim3(LN_WARPS * WARP), 0, stream,
         sum, out, mean, rstd, x, residual, gamma, beta, N, C);
}

template <class T>
static void forward(T* sum, T* out, float* mean, float* rstd, const T* x, const T* residual, const T* gamma, const T* beta, int N,
                    int C, cudaStream_t stream) {
  if (N == 0) return;
  auto run = [&](auto launcher) { launcher(sum, out, mean, rstd, x, residual, gamma, beta, N, C, stream); };
  switch (blocks_for(C, WARP * Pack<T>::size)) {   // packs a lane
    case 1: return run(launch_forward<T, 1, 4>);
    case 2: return run(launch_forward<T, 2, 2>);
    case 3: return run(launch_forward<T, 3, 1>);
    case 4: return run(launch_forward<T, 4, 1>);
    case 5: case 6: return run(launch_forward<T, 6, 1>);
    case 7: case 8: return run(launch_forward<T, 8, 1>);
  }
  launch(layernorm_forward_wide_kernel<T>, dim3(looping_blocks(N, LN_WARPS, 16)), dim3(LN_WARPS * WARP), 0, stream, sum, out, mean,
         rstd, x, residual, gamma, beta, N, C);
}

template <class T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* x, const T* gamma, const T* beta, int N, int C,
                       cudaStream_t stream) {
  forward<T>(nullptr, out, mean, rstd, x, nullptr, gamma, beta, N, C, stream);
}

template <class T>
void residual_layernorm_forward(T* sum, T* out, float* mean, float* rstd, const T* a, const T* b, const T* gamma, const T* beta,
                                int N, int C, cudaStream_t stream) {
  forward<T>(sum, out, mean, rstd, a, b, gamma, beta, N, C, stream);
}

// ---- backward --------------------------------------------------------------------------------------------------------------
// With xhat = (x - mean) rstd and g = dout gamma:  dx += rstd (g - mean(g) - xhat mean(g xhat)),
// dgamma += sum over rows of dout xhat,  dbeta += sum over rows of dout.
// A warp keeps the column sums of its rows in registers; a block's warps meet once, at the end, and write one partial sum.

// Blocks of at least 64 rows, and at most what 132 multiprocessors hold at once: registers allow 3 each, or 2 when rows are long.
static int backward_blocks(int N, int C) {
  int needed = int(blocks_for(N, 64)), most = 132 * (C <= 768 ? 3 : 2);
  return needed < most ? needed : most;
}

template <class T, int PACKS, int ROWS>
__global__ void __launch_bounds__(LN_WARPS* WARP)
    layernorm_backward_kernel(T* __restrict__ dx, float* partial /* = [blocks, 2, C] */, const T* __restrict__ dout,
                              const T* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ rstd,
                              const T* __restrict__ gamma, int N, int C) {
  constexpr int SIZE = Pack<T>::size;
  constexpr bool EARLY = PACKS * SIZE <= 32;   // dx is fetched with the rest, while there are registers for it
  DYNAMIC_SHARED(float, shared);   // [LN_WARPS, 2, C]
  int warp = threadIdx.x / WARP, groups = gridDim.x * LN_WARPS;
  float dgamma[PACKS][SIZE] = {}, dbeta[PACKS][SIZE] = {};
  for (int first = (blockIdx.x * LN_WARPS + warp) * ROWS; first < N; first += groups * ROWS) {
    Pack<T> d[ROWS][PACKS], v[ROWS][PACKS], to[ROWS][PACKS];
    float means[ROWS], inverses[ROWS], sums[2 * ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      bool row = first + r < N;
      means[r] = row ? mean[first + r] : 0.0f;
      inverses[r] = row ? rstd[first + r] : 0.0f;
#pragma unroll
      for (int p = 0; p < PACKS; p++) {   // zeros add nothing to any sum
        size_t at = size_t(first + r) * C + pack_column<T>(p);
        bool here = row && pack_column<T>(p) < C;
        d[r][p] = here ? load16(dout + at) : Pack<T>{};
        v[r][p] = here ? load16(x + at) : Pack<T>{};
        if (EARLY) to[r][p] = here ? load16(dx + at) : Pack<T>{};
      }
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      if (pack_column<T>(p) >= C) continue;
      Pack<T> g = load16(gamma + pack_column<T>(p));
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int k = 0; k < SIZE; k++) {
          float dy = to_float(d[r][p][k]), xhat = (to_float(v[r][p][k]) - means[r]) * inverses[r], dxhat = dy * to_float(g[k]);
          dgamma[p][k] += dy * xhat;
          dbeta[p][k] += dy;
          sums[2 * r] += dxhat;
          sums[2 * r + 1] += dxhat * xhat;
        }
    }
    warp_sum(sums);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      if (pack_column<T>(p) >= C) continue;
      Pack<T> g = load16(gamma + pack_column<T>(p));
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        if (first + r >= N) break;
        float mean_g = sums[2 * r] / C, mean_gx = sums[2 * r + 1] / C;
        if (!EARLY) to[r][p] = load16(dx + size_t(first + r) * C + pack_column<T>(p));
#pragma unroll
        for (int k = 0; k < SIZE; k++) {
          float xhat = (to_float(v[r][p][k]) - means[r]) * inverses[r], dxhat = to_float(d[r][p][k]) * to_float(g[k]);
          to[r][p][k] = from_float<T>(to_float(to[r][p][k]) + inverses[r] * (dxhat - mean_g - xhat * mean_gx));
        }
        store16(dx + size_t(first + r) * C + pack_column<T>(p), to[r][p]);
      }
    }
  }
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    int c = pack_column<T>(p);
    if (c >= C) continue;
    float* mine = shared + warp * 2 * C + c;
    for (int k = 0; k < SIZE; k += 4) {
      store16(mine + k, Pack<float>{dgamma[p][k], dgamma[p][k + 1], dgamma[p][k + 2], dgamma[p][k + 3]});
      store16(mine + C + k, Pack<float>{dbeta[p][k], dbeta[p][k + 1], dbeta[p][k + 2], dbeta[p][k + 3]});
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * C; c += LN_WARPS * WARP) {
    float sum = 0;
    for (int w = 0; w < LN_WARPS; w++) sum += shared[w * 2 * C + c];
    partial[size_t(blockIdx.x) * 2 * C + c] = sum;
  }
}

// Wide rows: dx by a warp per row, the column sums by a thread per column and chunk of rows, each reading dout and x.
template <class T>
__global__ void __launch_bounds__(LN_WARPS* WARP)
    layernorm_backward_wide_kernel(T* __restrict__ dx, const T* __restrict__ dout, const T* __restrict__ x,
                                   const float* __restrict__ mean, const float* __restrict__ rstd, const T* __restrict__ gamma, int N,
                                   int C) {
  constexpr int SIZE = Pack<T>::size;
  int warps = gridDim.x * LN_WARPS, step = WARP * SIZE;
  for (int row = blockIdx.x * LN_WARPS + threadIdx.x / WARP; row < N; row += warps) {
    const T *d_row = dout + size_t(row) * C, *x_row = x + size_t(row) * C;
    T* dx_row = dx + size_t(row) * C;
    float m = mean[row], inverse = rstd[row], sums[2] = {};
    for (int c = pack_column<T>(0); c < C; c += step) {
      Pack<T> d = load16(d_row + c), v = load16(x_row + c), g = load16(gamma + c);
      for (int k = 0; k < SIZE; k++) {
        float dxhat = to_float(d[k]) * to_float(g[k]);
        sums[0] += dxhat;
        sums[1] += dxhat * ((to_float(v[k]) - m) * inverse);
      }
    }
    warp_sum(sums);
    float mean_g = sums[0] / C, mean_gx = sums[1] / C;
    for (int c = pack_column<T>(0); c < C; c += step) {
      Pack<T> d = load16(d_row + c), v = load16(x_row + c), g = load16(gamma + c), to = load16(dx_row + c);
      for (int k = 0; k < SIZE; k++) {
        float xhat = (to_float(v[k]) - m) * inverse, dxhat = to_float(d[k]) * to_float(g[k]);
        to[k] = from_float<T>(to_float(to[k]) + inverse * (dxhat - mean_g - xhat * mean_gx));
      }
      store16(dx_row + c, to);
    }
  }
}

template <class T>
__global__ void layernorm_columns_kernel(float* partial /* = [chunks, 2, C] */, const T* __restrict__ dout, const T* __restrict__ x,
                                         const float* __restrict__ mean, const float* __restrict__ rstd, int N, int C) {
  constexpr int SIZE = Pack<T>::size;
  int c = (blockIdx.x * blockDim.x + threadIdx.x) * SIZE;
  if (c >= C) return;
  float dgamma[SIZE] = {}, dbeta[SIZE] = {};
#pragma unroll 4
  for (int row = blockIdx.y; row < N; row += gridDim.y) {
    Pack<T> d = load16(dout + size_t(row) * C + c), v = load16(x + size_t(row) * C + c);
    float m = mean[row], inverse = rstd[row];
    for (int k = 0; k < SIZE; k++) {
      dgamma[k] += to_float(d[k]) * ((to_float(v[k]) - m) * inverse);
      dbeta[k] += to_float(d[k]);
    }
  }
  float* to = partial + size_t(blockIdx.y) * 2 * C + c;
  for (int k = 0; k < SIZE; k++) to[k] = dgamma[k], to[C + k] = dbeta[k];
}

template <class T, int PACKS, int ROWS>
static void launch_backward(T* dx, float* partial, const T* dout, const T* x, const float* mean, const float* rstd, const T* gamma,
                            int N, int C, cudaStream_t stream) {
  launch((layernorm_backward_kernel<T, PACKS, ROWS>), dim3(backward_blocks(N, C)), dim3(LN_WARPS * WARP),
         size_t(LN_WARPS) * 2 * C * sizeof(float), stream, dx, partial, dout, x, mean, rstd, gamma, N, C);
}

template <class T>
static void launch_backward_wide(T* dx, float* partial, const T* dout, const T* x, const float* mean, const float* rstd,
                                 const T* gamma, int N, int C, cudaStream_t stream) {
  launch(layernorm_backward_wide_kernel<T>, dim3(looping_blocks(N, LN_WARPS, 16)), dim3(LN_WARPS * WARP), 0, stream, dx, dout, x,
         mean, rstd, gamma, N, C);
  launch(layernorm_columns_kernel<T>, dim3(blocks_for(C, 64 * Pack<T>::size), backward_blocks(N, C)), dim3(64), 0, stream, partial, dout,
         x, mean, rstd, N, C);
}

size_t layernorm_backward_workspace(int N, int C) { return size_t(backward_blocks(N, C)) * 2 * C * sizeof(float); }

template <class T>
void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dout, const T* x, const float* mean, const float* rstd,
                        const T* gamma, void* workspace, int N, int C, cudaStream_t stream) {
  if (N == 0) return;
  float* partial = static_cast<float*>(workspace);
  auto run = [&](auto launcher) { launcher(dx, partial, dout, x, mean, rstd, gamma, N, C, stream); };
  switch (blocks_for(C, WARP * Pack<T>::size)) {
    case 1: run(launch_backward<T, 1, 4>); break;
    case 2: run(launch_backward<T, 2, 2>); break;
    case 3: run(launch_backward<T, 3, 1>); break;
    case 4: run(launch_backward<T, 4, 1>); break;
    case 5: case 6: run(launch_backward<T, 6, 1>); break;
    case 7: run(launch_backward<T, 7, 1>); break;
    default: run(launch_backward_wide<T>);
  }
  add_column_sums(dgamma, C, dbeta, C, partial, backward_blocks(N, C), stream);
}

// ---- residual ----------------------------------------------------------------------------------------------------------------

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};

template <class T>
void residual_add(T* out, const T* a, const T* b, size_t n, cudaStream_t stream) {
  elementwise(Add(), out, n, stream, a, b);
}

#define INSTANTIATE(T)                                                                                                        \
  template void layernorm_forward(T*, float*, float*, const T*, const T*, const T*, int, int, cudaStream_t);                  \
  template void residual_layernorm_forward(T*, T*, float*, float*, const T*, const T*, const T*, const T*, int, int,          \
                                           cudaStream_t);                                                                     \
  template void layernorm_backward(T*, float*, float*, const T*, const T*, const float*, const float*, const T*, void*, int,  \
                                   int, cudaStream_t);                                                                        \
  template void residual_add(T*, const T*, const T*, size_t, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
