#include "kernels/layernorm.cuh"

#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

// Rows of up to SHORT channels: a thread per row. On a GPU the cache keeps such rows between the passes; on the CPU
// layer no thread waits for another, and waiting is most of a row's cost there (wider rows leave the other kernels to
// its tests). Longer rows: a warp per row, in registers as long as they fit.

constexpr int SHORT = on_cpu ? 768 : 256;
constexpr int LN_WARPS = 4;
// The rows that a block has at once, with this many threads a row.
template <int THREADS> constexpr int ROWS = THREADS == 1 ? 64 : LN_WARPS;

// What a forward kernel is compiled for: layernorm with beta and without, RMSNorm. The backward kernels: RMS or not.
enum class Form { shifted, centred, rms };

// The column of a lane's p-th pack.
template <class T> __device__ inline int pack_column(int p) {
  return (p * WARP + int(threadIdx.x) % WARP) * Pack<T>::size;
}

// ---- forward --------------------------------------------------------------------------------------------------------

template <class T> __device__ __forceinline__ void add_values(float (&sums)[Pack<T>::size], const Pack<T>& v) {
#pragma unroll
  for (int k = 0; k < Pack<T>::size; k++) sums[k] += to_float(v[k]);
}

template <class T>
__device__ __forceinline__ void add_squares(float (&sums)[Pack<T>::size], const Pack<T>& v, float mean) {
#pragma unroll
  for (int k = 0; k < Pack<T>::size; k++) {
    float d = to_float(v[k]) - mean;
    sums[k] += d * d;
  }
}

template <class T, Form FORM>
__device__ __forceinline__ void normalize_pack(T* out, const Pack<T>& x, float mean, float rstd, const T* gamma,
                                               const T* beta, int c) {
  Pack<T> g = load16(gamma + c), y;
  if constexpr (FORM == Form::shifted) {
    Pack<T> b = load16(beta + c);
#pragma unroll
    for (int k = 0; k < Pack<T>::size; k++)
      y[k] = from_float<T>((to_float(x[k]) - mean) * rstd * to_float(g[k]) + to_float(b[k]));
  } else {
#pragma unroll
    for (int k = 0; k < Pack<T>::size; k++) y[k] = from_float<T>((to_float(x[k]) - mean) * rstd * to_float(g[k]));
  }
  store16(out, y);
}

// Of one lane of a row.
template <Form FORM>
__device__ __forceinline__ void put_statistics(float* mean, float* rstd, int row, float m, float inverse) {
  if (FORM == Form::rms ? !rstd : !mean) return;
  if (FORM != Form::rms) mean[row] = m;
  rstd[row] = inverse;
}

template <class T, Form FORM, int PACKS>
__global__ void __launch_bounds__(LN_WARPS* WARP)
    layernorm_forward_kernel(T* out, float* mean, float* rstd, const T* x, const T* __restrict__ gamma,
                             const T* __restrict__ beta, int N, int C) {
  int warps = gridDim.x * LN_WARPS;
  for (int row = blockIdx.x * LN_WARPS + threadIdx.x / WARP; row < N; row += warps) {
    Pack<T> v[PACKS];
    float totals[Pack<T>::size] = {}, squares[Pack<T>::size] = {};
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      int c = pack_column<T>(p);
      v[p] = c < C ? load16(x + size_t(row) * C + c) : Pack<T>{};
    }
    float m = 0;
    if constexpr (FORM != Form::rms) {
#pragma unroll
      for (int p = 0; p < PACKS; p++) add_values(totals, v[p]);
      m = warp_sum(sum_of(totals)) / C;
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      if (pack_column<T>(p) < C) add_squares(squares, v[p], m);
    }
    float inverse = 1.0f / sqrtf(warp_sum(sum_of(squares)) / C + LAYERNORM_EPS);
    if (threadIdx.x % WARP == 0) put_statistics<FORM>(mean, rstd, row, m, inverse);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      int c = pack_column<T>(p);
      if (c < C) normalize_pack<T, FORM>(out + size_t(row) * C + c, v[p], m, inverse, gamma, beta, c);
    }
  }
}

// A row by THREADS threads (1 or 32), which read it again for each pass, from the cache.
template <class T, Form FORM, int THREADS>
__global__ void layernorm_forward_cached_kernel(T* out, float* mean, float* rstd, const T* x,
                                                const T* __restrict__ gamma, const T* __restrict__ beta, int N, int C) {
  constexpr int SIZE = Pack<T>::size;
  int thread = threadIdx.x % THREADS, rows = gridDim.x * ROWS<THREADS>;
  for (int row = blockIdx.x * ROWS<THREADS> + threadIdx.x / THREADS; row < N; row += rows) {
    const T* from = x + size_t(row) * C;
    float totals[SIZE] = {}, squares[SIZE] = {};
    float m = 0;
    if constexpr (FORM != Form::rms) {
#pragma unroll 4
      for (int c = thread * SIZE; c < C; c += THREADS * SIZE) add_values(totals, load16(from + c));
      float total = sum_of(totals);
      if (THREADS == WARP) total = warp_sum(total);
      m = total / C;
    }
#pragma unroll 4
    for (int c = thread * SIZE; c < C; c += THREADS * SIZE) add_squares(squares, load16(from + c), m);
    float square = sum_of(squares);
    if (THREADS == WARP) square = warp_sum(square);
    float inverse = 1.0f / sqrtf(square / C + LAYERNORM_EPS);
    if (thread == 0) put_statistics<FORM>(mean, rstd, row, m, inverse);
#pragma unroll 4
    for (int c = thread * SIZE; c < C; c += THREADS * SIZE)
      normalize_pack<T, FORM>(out + size_t(row) * C + c, load16(from + c), m, inverse, gamma, beta, c);
    if (THREADS == 1) return;  // has a thread for every row: without the loop it takes fewer registers
  }
}

template <Form FORM, class T>
static void forward_as(T* out, float* mean, float* rstd, const T* x, const T* gamma, const T* beta, int N, int C,
                       cudaStream_t stream) {
  auto kernel = layernorm_forward_cached_kernel<T, FORM, WARP>;
  switch (blocks_for(C, WARP * Pack<T>::size)) {  // packs a lane
    case 1:
    case 2: kernel = layernorm_forward_kernel<T, FORM, 2>; break;
    case 3: kernel = layernorm_forward_kernel<T, FORM, 3>; break;
    case 4: kernel = layernorm_forward_kernel<T, FORM, 4>; break;
    case 5:
    case 6: kernel = layernorm_forward_kernel<T, FORM, 6>; break;
    case 7:
    case 8: kernel = layernorm_forward_kernel<T, FORM, 8>; break;
  }
  dim3 grid(looping_blocks(N, LN_WARPS, 64)), block(LN_WARPS * WARP);
  if (C <= SHORT) {
    kernel = layernorm_forward_cached_kernel<T, FORM, 1>;
    grid = dim3(blocks_for(N, 64));
    block = dim3(64);
  }
  launch_kernel("layernorm_forward", kernel, grid, block, 0, stream, out, mean, rstd, x, gamma, beta, N, C);
}

template <class T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* x, const T* gamma, const T* beta, int N, int C,
                       cudaStream_t stream, bool rms) {
  if (N == 0) return;
  auto forward = rms ? forward_as<Form::rms, T> : beta ? forward_as<Form::shifted, T> : forward_as<Form::centred, T>;
  forward(out, mean, rstd, x, gamma, beta, N, C, stream);
}

// ---- backward -------------------------------------------------------------------------------------------------------
// With xhat = (x - mean) rstd and g = dout gamma: dx += rstd (g - mean(g) - xhat mean(g xhat)), dgamma += sum over rows
// of dout xhat, dbeta += sum over rows of dout, dbias += sum over rows of dx. RMS: mean and mean(g) count as 0.
// A warp keeps the column sums of its rows in registers; a block's warps meet once, at the end, and write one partial
// sum. Short and wide rows: dx by a thread or a warp per row; the column sums by a thread per column and chunk of rows,
// which reads dout and x again.

// Blocks of at least 64 rows, and at most as many as the multiprocessors hold at once: registers allow 3 on each, or 2
// if rows are long. On a CPU as many as on an H100, so that bits do not depend on the number of threads.
static int backward_blocks(int N, int C) {
  int multiprocessors = on_cpu ? 132 : device_properties().multiProcessorCount;
  int needed = int(blocks_for(N, 64)), most = multiprocessors * (C <= 768 ? 3 : 2);
  return needed < most ? needed : most;
}

// sums of dxhat = dout gamma, and of dxhat xhat
template <class T>
__device__ __forceinline__ void add_gradients(float (&sum_g)[Pack<T>::size], float (&sum_gx)[Pack<T>::size],
                                              const Pack<T>& dout, const Pack<T>& x, float mean, float rstd,
                                              const Pack<T>& gamma) {
#pragma unroll
  for (int k = 0; k < Pack<T>::size; k++) {
    float g = to_float(dout[k]) * to_float(gamma[k]);
    sum_g[k] += g;
    sum_gx[k] += g * ((to_float(x[k]) - mean) * rstd);
  }
}

template <class T>
__device__ __forceinline__ Pack<T> add_dx(const Pack<T>& dx, const Pack<T>& dout, const Pack<T>& x, float mean,
                                          float rstd, const Pack<T>& gamma, float mean_g, float mean_gx) {
  Pack<T> sum;
#pragma unroll
  for (int k = 0; k < Pack<T>::size; k++) {
    float g = to_float(dout[k]) * to_float(gamma[k]), xhat = (to_float(x[k]) - mean) * rstd;
    sum[k] = from_float<T>(to_float(dx[k]) + rstd * (g - mean_g - xhat * mean_gx));
  }
  return sum;
}

template <class T>
__device__ __forceinline__ void add_columns(float (&dgamma)[Pack<T>::size], float (&dbeta)[Pack<T>::size],
                                            const Pack<T>& dout, const Pack<T>& x, float mean, float rstd) {
#pragma unroll
  for (int k = 0; k < Pack<T>::size; k++) {
    dgamma[k] += to_float(dout[k]) * ((to_float(x[k]) - mean) * rstd);
    dbeta[k] += to_float(dout[k]);
  }
}

// sums [C] = those of the warps' sums [LN_WARPS, C], by all threads of a block.
__device__ __forceinline__ void add_warps(float* sums, const float* of_warps, int C) {
  for (int c = threadIdx.x; c < C; c += LN_WARPS * WARP) {
    float sum = 0;
    for (int w = 0; w < LN_WARPS; w++) sum += of_warps[w * C + c];
    sums[c] = sum;
  }
}

// sums [Pack<T>::size] += x.
template <class T> __device__ __forceinline__ void add_to_shared(float* sums, const Pack<T>& x) {
  float mine[Pack<T>::size];
  read_floats(mine, sums);
  add_values(mine, x);
  write_floats(sums, mine);
}

// dx += of N rows; partial: this block's sums of dgamma, dbeta and dbias, the sum of dx.
template <class T, bool RMS, int PACKS>
__global__ void __launch_bounds__(LN_WARPS* WARP, sizeof(T) == 2 && PACKS <= 3 ? 3 : 2)
    layernorm_backward_kernel(T* __restrict__ dx, float* partial /* = [blocks, 3, C] */, const T* __restrict__ dout,
                              const T* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ rstd,
                              const T* __restrict__ gamma, int N, int C) {
  constexpr int SIZE = Pack<T>::size;
  constexpr bool ROOM = PACKS * SIZE <= 32;  // in registers: for dx, loaded with the rest, and for its column sums
  DYNAMIC_SHARED(float, shared);             // [LN_WARPS, C], for each of the three in turn; without ROOM first dbias
  int warp = threadIdx.x / WARP, warps = gridDim.x * LN_WARPS;
  float columns[3][PACKS][SIZE] = {};  // dgamma, dbeta, dbias
  auto put = [&](const float(&sums)[SIZE], int p) {
    if (pack_column<T>(p) < C) write_floats(shared + warp * C + pack_column<T>(p), sums);
  };
  for (int p = 0; p < PACKS && !ROOM; p++) put(columns[2][p], p);
  for (int row = blockIdx.x * LN_WARPS + warp; row < N; row += warps) {
    Pack<T> d[PACKS], v[PACKS], to[PACKS];
    float m = RMS ? 0.0f : mean[row], inverse = rstd[row], sums[2] = {};
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      size_t at = size_t(row) * C + pack_column<T>(p);
      bool here = pack_column<T>(p) < C;
      d[p] = here ? load16(dout + at) : Pack<T>{};
      v[p] = here ? load16(x + at) : Pack<T>{};
      if (ROOM) to[p] = here ? load16(dx + at) : Pack<T>{};
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      if (pack_column<T>(p) >= C) continue;
      float sum_g[SIZE] = {}, sum_gx[SIZE] = {};
      add_gradients(sum_g, sum_gx, d[p], v[p], m, inverse, load16(gamma + pack_column<T>(p)));
      add_columns(columns[0][p], columns[1][p], d[p], v[p], m, inverse);
      sums[0] += sum_of(sum_g);
      sums[1] += sum_of(sum_gx);
    }
    warp_sum(sums);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      if (pack_column<T>(p) >= C) continue;
      T* at = dx + size_t(row) * C + pack_column<T>(p);
      if (!ROOM) to[p] = load16(at);
      to[p] = add_dx(to[p], d[p], v[p], m, inverse, load16(gamma + pack_column<T>(p)), RMS ? 0.0f : sums[0] / C,
                     sums[1] / C);
      if constexpr (ROOM) add_values(columns[2][p], to[p]);
      else add_to_shared(shared + warp * C + pack_column<T>(p), to[p]);
      store16(at, to[p]);
    }
  }
#pragma unroll
  for (int array = 2; array >= 0; array--) {
#pragma unroll
    for (int p = 0; p < PACKS; p++)
      if (ROOM || array < 2) put(columns[array][p], p);
    __syncthreads();
    add_warps(partial + (size_t(blockIdx.x) * 3 + array) * C, shared, C);
    __syncthreads();
  }
}

// dx of a row by THREADS threads (1 or 32).
template <class T, bool RMS, int THREADS>
__global__ void layernorm_dx_kernel(T* __restrict__ dx, const T* __restrict__ dout, const T* __restrict__ x,
                                    const float* __restrict__ mean, const float* __restrict__ rstd,
                                    const T* __restrict__ gamma, int N, int C) {
  constexpr int SIZE = Pack<T>::size;
  int thread = threadIdx.x % THREADS, rows = gridDim.x * ROWS<THREADS>;
  for (int row = blockIdx.x * ROWS<THREADS> + threadIdx.x / THREADS; row < N; row += rows) {
    const T *d_row = dout + size_t(row) * C, *x_row = x + size_t(row) * C;
    T* dx_row = dx + size_t(row) * C;
    float m = RMS ? 0.0f : mean[row], inverse = rstd[row], sum_g[SIZE] = {}, sum_gx[SIZE] = {};
#pragma unroll 4
    for (int c = thread * SIZE; c < C; c += THREADS * SIZE)
      add_gradients(sum_g, sum_gx, load16(d_row + c), load16(x_row + c), m, inverse, load16(gamma + c));
    float sums[2] = {sum_of(sum_g), sum_of(sum_gx)};
    if (THREADS == WARP) warp_sum(sums);
    float mean_g = RMS ? 0.0f : sums[0] / C, mean_gx = sums[1] / C;
#pragma unroll 4
    for (int c = thread * SIZE; c < C; c += THREADS * SIZE)
      store16(dx_row + c, add_dx(load16(dx_row + c), load16(d_row + c), load16(x_row + c), m, inverse,
                                 load16(gamma + c), mean_g, mean_gx));
    if (THREADS == 1) return;  // has a thread for every row: without the loop it takes fewer registers
  }
}

template <class T, bool RMS>
__global__ void layernorm_columns_kernel(float* partial /* = [chunks, 3, C] */, const T* __restrict__ dx,
                                         const T* __restrict__ dout, const T* __restrict__ x,
                                         const float* __restrict__ mean, const float* __restrict__ rstd, int N, int C) {
  constexpr int SIZE = Pack<T>::size;
  int c = (blockIdx.x * blockDim.x + threadIdx.x) * SIZE;
  if (c >= C) return;
  float dgamma[SIZE] = {}, dbeta[SIZE] = {}, dbias[SIZE] = {};
#pragma unroll 4
  for (int row = blockIdx.y; row < N; row += gridDim.y) {
    size_t at = size_t(row) * C + c;
    add_columns(dgamma, dbeta, load16(dout + at), load16(x + at), RMS ? 0.0f : mean[row], rstd[row]);
    add_values(dbias, load16(dx + at));
  }
  float* to = partial + size_t(blockIdx.y) * 3 * C + c;
  for (int k = 0; k < SIZE; k++) to[k] = dgamma[k], to[C + k] = dbeta[k], to[2 * C + k] = dbias[k];
}

size_t layernorm_backward_workspace(int N, int C) { return size_t(backward_blocks(N, C)) * 3 * C * sizeof(float); }

// partial = the column sums, of each of `blocks` blocks.
template <bool RMS, class T>
static void backward_as(T* dx, float* partial, const T* dout, const T* x, const float* mean, const float* rstd,
                        const T* gamma, int blocks, int N, int C, cudaStream_t stream) {
  void (*kernel)(T*, float*, const T*, const T*, const float*, const float*, const T*, int, int) = nullptr;
  switch (blocks_for(C, WARP * Pack<T>::size)) {  // packs a lane
    case 1:
    case 2: kernel = layernorm_backward_kernel<T, RMS, 2>; break;
    case 3: kernel = layernorm_backward_kernel<T, RMS, 3>; break;
    case 4: kernel = layernorm_backward_kernel<T, RMS, 4>; break;
    case 5:
    case 6: kernel = layernorm_backward_kernel<T, RMS, 6>; break;
  }
  if (kernel && C > SHORT) {
    launch_kernel("layernorm_backward", kernel, dim3(blocks), dim3(LN_WARPS * WARP),
                  size_t(LN_WARPS) * C * sizeof(float), stream, dx, partial, dout, x, mean, rstd, gamma, N, C);
  } else {
    if (C <= SHORT) {
      LAUNCH((layernorm_dx_kernel<T, RMS, 1>), dim3(blocks_for(N, 64)), dim3(64), 0, stream, dx, dout, x, mean, rstd,
             gamma, N, C);
    } else {
      LAUNCH((layernorm_dx_kernel<T, RMS, WARP>), dim3(looping_blocks(N, LN_WARPS, 64)), dim3(LN_WARPS * WARP), 0,
             stream, dx, dout, x, mean, rstd, gamma, N, C);
    }
    LAUNCH((layernorm_columns_kernel<T, RMS>), dim3(blocks_for(C, WARP * Pack<T>::size), blocks), dim3(WARP), 0, stream,
           partial, dx, dout, x, mean, rstd, N, C);
  }
}

template <class T>
void layernorm_backward(T* dx, float* dgamma, float* dbeta, float* dbias, const T* dout, const T* x, const float* mean,
                        const float* rstd, const T* gamma, void* workspace, int N, int C, cudaStream_t stream,
                        bool rms) {
  if (N == 0) return;
  float* partial = static_cast<float*>(workspace);
  int blocks = backward_blocks(N, C);
  (rms ? backward_as<true, T> : backward_as<false, T>)(dx, partial, dout, x, mean, rstd, gamma, blocks, N, C, stream);
  add_column_sums({{dgamma, dbeta, dbias}, 3}, C, partial, blocks, stream);
}

#define INSTANTIATE(T)                                                                                             \
  template void layernorm_forward(T*, float*, float*, const T*, const T*, const T*, int, int, cudaStream_t, bool); \
  template void layernorm_backward(T*, float*, float*, float*, const T*, const T*, const float*, const float*,     \
                                   const T*, void*, int, int, cudaStream_t, bool);
INSTANTIATE(float)
INSTANTIATE(bf16)
