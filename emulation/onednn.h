// Products by oneDNN, which writes its kernels for the CPU at hand while the program runs: with AVX-512 for float32,
// with AVX512_BF16 or AMX for bf16. Everywhere else, and in a build without oneDNN, OpenBLAS multiplies.
#pragma once
#include <functional>
#include <string>

namespace cpu {

// d[m, n] = op(a)[m, k] op(b)[k, n] + beta d. Row-major, sums in float32; a is [k, m] with trans_a, b [n, k] with
// trans_b, both bf16 if `bf16`, else float. A leading dimension counts the elements of a row.
struct Product {
  int m, n, k;
  bool trans_a, trans_b;
  int lda, ldb, ldd;
  bool bf16;
  float beta;
  auto operator<=>(const Product&) const = default;
};

// Computes it in the calling thread alone, so the bits depend on the shape and the CPU. False if oneDNN has no fast
// kernel for it, or a wrong one, which the first such product names in a warning: nothing was done then.
bool multiply_by_onednn(const Product& product, const void* a, const void* b, float* d);

bool onednn_multiplies_bf16();  // with instructions for it

// Whether multiply(a, b, d) computes the product: compared once, on numbers of its own, with plain sums. They are whole
// and small, so float32 adds them exactly in any order, and nothing is tolerated. NaN is placed where nothing may be
// read, and what is beside d must stay as it is. beta is 0 or 1.
bool computes(const Product& product, const std::function<void(const void* a, const void* b, float* d)>& multiply);

// oneDNN's version and the instructions that it uses, as in "oneDNN 2.6.3 AVX512_BF16"; "" if it has no fast kernels.
std::string onednn_kernels();

}  // namespace cpu
