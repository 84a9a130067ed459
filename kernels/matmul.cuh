// Matrix products, row-major:  D[m, n] = op(A)[m, k] op(B)[k, n] + beta D, accumulated in float32, then the epilogue.
// In place of D another matrix C can be added: D = op(A) op(B) + C.
// kernels/matmul.cu does them with cuBLASLt, emulation/matmul.cpp with oneDNN or OpenBLAS. Floor: 2 m n k FLOPs.
#pragma once
#include <string>
#include <type_traits>

#include "base/error.h"
#include "kernels/gpu.cuh"
#include "kernels/matmul_choices.h"

enum class Epilogue {
  none,
  bias,       // D = AB + bias; without `bias` the same as none
  bias_gelu,  // aux = AB + bias (before GELU, kept for the backward; may be nullptr), D = gelu(AB + bias)
  dgelu,      // D = AB gelu'(aux)
};

// A is [m, k], or [k, m] with trans_a; B is [k, n], or [n, k] with trans_b. Leading dimensions count elements of a row;
// 0 = contiguous. aux and c have D's rows and leading dimension. beta needs Epilogue::none, and so does <bf16, float>;
// c needs beta 0 and Epilogue::none or bias. D overlaps none of the others. batch: that many products, of matrices that
// are contiguous and lie one after the other; D = op(A) op(B) alone.
template <class TIn, class TOut = TIn> struct Matmul {
  TOut* d;
  const TIn* a;
  const TIn* b;
  int m, n, k;
  bool trans_a = false, trans_b = false;
  int ldd = 0, lda = 0, ldb = 0;
  float beta = 0;
  Epilogue epilogue = Epilogue::none;
  const TIn* bias = nullptr;  // [n]
  TIn* aux = nullptr;         // [m, n]
  const TOut* c = nullptr;    // [m, n]
  int batch = 1;
};

// Fills in contiguous leading dimensions; fails on a combination that has no meaning.
template <class TIn, class TOut> void check_matmul(Matmul<TIn, TOut>& p) {
  if (p.ldd == 0) p.ldd = p.n;
  if (p.lda == 0) p.lda = p.trans_a ? p.m : p.k;
  if (p.ldb == 0) p.ldb = p.trans_b ? p.k : p.n;
  if (p.epilogue == Epilogue::bias && !p.bias) p.epilogue = Epilogue::none;
  bool plain = p.epilogue == Epilogue::none;
  bool contiguous = p.ldd == p.n && p.lda == (p.trans_a ? p.m : p.k) && p.ldb == (p.trans_b ? p.k : p.n);
  if (p.batch != 1 && (p.batch < 1 || !plain || !contiguous || p.beta != 0 || p.c))
    failure("matmul: a batch needs contiguous matrices and no more than their product");
  if (p.m < 0 || p.n < 0 || p.k < 1) failure("matmul: m, n, k = %d, %d, %d; need 0, 0, 1 or more", p.m, p.n, p.k);
  if (!plain && (p.beta != 0 || !std::is_same_v<TIn, TOut>)) failure("matmul: an epilogue needs beta 0 and one type");
  if (p.epilogue == Epilogue::bias_gelu && !p.bias) failure("matmul: this epilogue adds a bias; set `bias`");
  if (p.c && (p.beta != 0 || (!plain && p.epilogue != Epilogue::bias)))
    failure("matmul: c needs beta 0 and epilogue none or bias");
  if (p.epilogue == Epilogue::dgelu && !p.aux) failure("matmul: set `aux`, the values before GELU");
}

// <float, float>, <bf16, bf16>, <bf16, float>. float inputs are multiplied in full float32 (no TF32). On the GPU the
// first call of a shape measures cuBLASLt's candidates and keeps the fastest. One that fuses an epilogue or divides k
// is compared with the plain product before, on random numbers. If it differs by more than rounding explains, it is
// dropped with a warning; without memory for that the plain product is used. Same shape, same choice, same bits.
template <class TIn, class TOut> void matmul(const Matmul<TIn, TOut>& p, cudaStream_t stream);

// Frees what the products on this stream have allocated: after the last of them, before the stream is destroyed.
void matmul_release(cudaStream_t stream);

// For measurements: from now on a product may use this many bytes of memory beside its arrays, MATMUL_WORKSPACE by
// default. All choices are forgotten, so that they are made anew. Without effect on the CPU.
// On an H200, 256 MiB make no gradient of GPT-2 124M's weights surely faster and that of qkv 8% slower
// (dev/bench/LOG.md).
inline constexpr size_t MATMUL_WORKSPACE = size_t(32) << 20;
void matmul_workspace(size_t bytes);

// The choices for the current device; nullptr if there is nothing to choose between, as on the CPU.
MatmulChoices* matmul_choices();

// The library that multiplies, its version and, on the CPU, its kernels: on them the bits depend.
std::string matmul_library();
