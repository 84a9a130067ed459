// matmul() on the CPU (contract: kernels/matmul.cuh): oneDNN or OpenBLAS with one thread per product, many products at
// once. The output is cut into tiles that the pool's threads take; the cut depends on the shape alone, and so does
// every bit of the result. OpenBLAS multiplies float32: bf16 operands are widened a tile's panel at a time. The
// epilogue runs on the tile while it is in cache.
// For tests PLUSGPT_MATMUL=choose makes it as on a GPU: several algorithms, one of which each process picks by itself.
#include "kernels/matmul.cuh"

#include <cblas.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "emulation/onednn.h"
#include "emulation/pool.h"
#include "emulation/streams.h"
#include "kernels/gelu.cuh"
#include "kernels/profile.h"

namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Tiles of at most 256 x 512, split further, down to about 64 x 64, until there are at least 8: for load balance.
struct Tiling {
  int rows = 1, columns = 1, height, width;
  Tiling(int m, int n) {
    rows = ceil_div(m, 256), columns = ceil_div(n, 512);
    while (rows * columns < 8) {
      int h = m / rows, w = n / columns;
      if (h < 128 && w < 128) break;
      (h >= w ? rows : columns) *= 2;
    }
    height = ceil_div(ceil_div(m, rows), 16) * 16, width = ceil_div(ceil_div(n, columns), 16) * 16;
    rows = ceil_div(m, height), columns = ceil_div(n, width);
  }
};

// A rows x columns part of a row-major matrix as float32: float in place, bf16 widened into `buffer`.
struct Panel {
  const float* data;
  int ld;
};
Panel widen(const float* from, int ld, int, int, std::vector<float>&) { return {from, ld}; }
Panel widen(const bf16* from, int ld, int rows, int columns, std::vector<float>& buffer) {
  if (buffer.size() < size_t(rows) * columns) buffer.resize(size_t(rows) * columns);
  for (int r = 0; r < rows; r++) {
    const bf16* in = from + size_t(r) * ld;
    float* out = buffer.data() + size_t(r) * columns;
    for (int c = 0; c < columns; c++) out[c] = to_float(in[c]);
  }
  return {buffer.data(), columns};
}

// One row of a finished tile: the epilogue, and storage in the output's type. out may be sums, and c_row nullptr.
template <class TIn, class TOut>
void finish_row(Epilogue e, TOut* out, float* sums, int width, const TIn* bias, TIn* aux, const TOut* c_row) {
  if (e == Epilogue::bias || e == Epilogue::bias_gelu)
    for (int c = 0; c < width; c++) sums[c] += to_float(bias[c]);
  if (c_row && (e == Epilogue::none || e == Epilogue::bias))
    for (int c = 0; c < width; c++) sums[c] += to_float(c_row[c]);
  if (aux && e == Epilogue::bias_gelu)
    for (int c = 0; c < width; c++) aux[c] = from_float<TIn>(sums[c]);
  if (e == Epilogue::bias_gelu)
    for (int c = 0; c < width; c++) sums[c] = gelu(sums[c]);
  if (e == Epilogue::dgelu)
    for (int c = 0; c < width; c++) sums[c] *= gelu_grad(to_float(aux[c]));
  if (static_cast<void*>(out) != sums)
    for (int c = 0; c < width; c++) out[c] = from_float<TOut>(sums[c]);
}

// Widened bf16 goes in slices of k, so that both panels stay in the second-level cache.
template <class TIn> constexpr int SLICE = std::is_same_v<TIn, float> ? 1 << 30 : 512;

void multiply_floats(const cpu::Product& p, const float* a, const float* b, float* d) {
  if (cpu::multiply_by_onednn(p, a, b, d)) return;
  cblas_sgemm(CblasRowMajor, p.trans_a ? CblasTrans : CblasNoTrans, p.trans_b ? CblasTrans : CblasNoTrans, p.m, p.n,
              p.k, 1.0f, a, p.lda, b, p.ldb, p.beta, d, p.ldd);
}

// most: how much of k is added up at a time.
template <class TIn, class TOut>
void multiply_tile(const Matmul<TIn, TOut>& p, int most, int row, int column, int height, int width) {
  static thread_local std::vector<float> a_buffer, b_buffer, d_buffer;
  TOut* out = p.d + size_t(row) * p.ldd + column;
  float *sums, beta = p.beta;
  int ld_sums;
  if constexpr (std::is_same_v<TOut, float>) {
    sums = out;
    ld_sums = p.ldd;
  } else {
    if (d_buffer.size() < size_t(height) * width) d_buffer.resize(size_t(height) * width);
    sums = d_buffer.data();
    ld_sums = width;
    if (beta != 0)
      for (int r = 0; r < height; r++)
        for (int c = 0; c < width; c++) sums[size_t(r) * width + c] = to_float(out[size_t(r) * p.ldd + c]);
  }
  auto a_at = [&](int k) { return p.a + (p.trans_a ? size_t(k) * p.lda + row : size_t(row) * p.lda + k); };
  auto b_at = [&](int k) { return p.b + (p.trans_b ? size_t(column) * p.ldb + k : size_t(k) * p.ldb + column); };
  for (int k = 0, depth; k < p.k; k += depth, beta = 1) {
    depth = std::min(most, p.k - k);
    cpu::Product product{height, width, depth, p.trans_a, p.trans_b, p.lda, p.ldb, ld_sums, true, beta};
    if (std::is_same_v<TIn, bf16> && cpu::multiply_by_onednn(product, a_at(k), b_at(k), sums)) continue;
    depth = std::min(depth, SLICE<TIn>);
    Panel a =
        p.trans_a ? widen(a_at(k), p.lda, depth, height, a_buffer) : widen(a_at(k), p.lda, height, depth, a_buffer);
    Panel b = p.trans_b ? widen(b_at(k), p.ldb, width, depth, b_buffer) : widen(b_at(k), p.ldb, depth, width, b_buffer);
    multiply_floats({height, width, depth, p.trans_a, p.trans_b, a.ld, b.ld, ld_sums, false, beta}, a.data, b.data,
                    sums);
  }
  for (int r = 0; r < height; r++) {
    TIn* aux = p.aux ? p.aux + size_t(row + r) * p.ldd + column : nullptr;
    const TIn* bias = p.bias ? p.bias + column : nullptr;
    const TOut* c = p.c ? p.c + size_t(row + r) * p.ldd + column : nullptr;
    finish_row(p.epilogue, out + size_t(r) * p.ldd, sums + size_t(r) * ld_sums, width, bias, aux, c);
  }
}

// The algorithms to choose from: k in 1 to 4 parts, whose sums round differently. The fastest one on a GPU differs from
// process to process, so here a hash of the process's number decides.
template <class TIn, class TOut> int chosen_part(const Matmul<TIn, TOut>& p) {
  MatmulChoices* choices = matmul_choices();
  if (!choices) return p.k;
  std::string shape = format("in%zu out%zu m%d n%d k%d %d%d acc%d ep%d", sizeof(TIn), sizeof(TOut), p.m, p.n, p.k,
                             p.trans_a, p.trans_b, p.c ? 2 : p.beta != 0, int(p.epilogue));
  if (!choices->find(shape))
    choices->choose(shape, format("%zu", 1 + std::hash<std::string>()(format("%d ", getpid()) + shape) % 4));
  return ceil_div(p.k, std::max(1, std::atoi(choices->find(shape)->c_str())));
}

}  // namespace

std::string matmul_library() {
  if (std::string kernels = cpu::onednn_kernels(); !kernels.empty()) return kernels;
  std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 DYNAMIC_ARCH ..."
  return config.substr(0, config.find(' ', config.find(' ') + 1)) + " " + openblas_get_corename();
}

template <class TIn, class TOut> void matmul(const Matmul<TIn, TOut>& given, cudaStream_t stream) {
  [[maybe_unused]] static const bool one_thread = (openblas_set_num_threads(1), true);
  Matmul<TIn, TOut> p = given;
  check_matmul(p);
  if (p.m == 0 || p.n == 0) return;
  ProfileScope scope("matmul", stream);
  cpu::put_on(stream, [p, part = chosen_part(p)] {
    Tiling tiles(p.m, p.n);
    int one = tiles.rows * tiles.columns;
    cpu::parallel_for(one * p.batch, [&](int i) {
      Matmul<TIn, TOut> of = p;  // the batch
      size_t index = size_t(i / one);
      i %= one, of.d += index * p.m * p.n, of.a += index * p.m * p.k, of.b += index * p.k * p.n;
      int row = i / tiles.columns * tiles.height, column = i % tiles.columns * tiles.width;
      multiply_tile(of, part, row, column, std::min(tiles.height, p.m - row), std::min(tiles.width, p.n - column));
    });
  });
}

template void matmul(const Matmul<float, float>&, cudaStream_t);
template void matmul(const Matmul<bf16, bf16>&, cudaStream_t);
template void matmul(const Matmul<bf16, float>&, cudaStream_t);

void matmul_release(cudaStream_t) {}  // nothing is allocated for a stream
void matmul_workspace(size_t) {}

MatmulChoices* matmul_choices() {
  static const char* asked = std::getenv("PLUSGPT_MATMUL");
  static MatmulChoices choices("CPU\tOpenBLAS");
  if (asked && asked != std::string("choose"))
    user_error("environment: PLUSGPT_MATMUL = \"%s\" is unknown: choose, or nothing", asked);
  return asked ? &choices : nullptr;
}
