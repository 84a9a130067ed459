// A mixture of two normalisers, a policy with POSITIONS: P = g P1 + (1 - g) P2, of P1 = softmax of z - fall ln(1 + i -
// j) and P2 = sigmoid(z) / sum sigmoid(z), with a share g that each head learns.
#pragma once
#include "attention/kind.h"

KIND(mixture) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr ScoreKey parameters[] = {{"fall", 0.1, "[0, 1e3]", "how fast mixture's scores fall with distance"}};
  static constexpr LearnedNumber learned[] = {{"share", 0.5}};
  static constexpr const char* pytorch =
      "share * softmax(z - fall * torch.log(1 + i - j)) + (1 - share) * normalised(torch.sigmoid(z))";
  struct Numbers {
    float fall, share;  // share: where a call has none that are learned
  };
  static Numbers numbers(const double* p) { return {float(p[0]), float(p[1])}; }
};

#if POLICIES
template <class Maths> struct Mixture : PolicyDefaults {
  using Evaluation = Mixture;
  static constexpr int SWEEPS = 2, OUTPUTS = 2, GRADIENT_REGISTERS = 1, LEARNED = 1;
  static constexpr bool POSITIONS = true;
  // The first sweep's sums, of which SUM_1 is relative to e^MAX, then MAX and the inverses of both. (With lse in place
  // of MAX and 1 / SUM_1 the weights of scores of 4000 would err by e^(4000 2^-24) - 1.)
  enum { MAX, SUM_1, SUM_2, SUMS };
  enum { CONSTANTS = SUMS };
  enum { SAVED = SUMS };
  enum { DOT_1 = SUMS, DOT_2, ROW_VALUES };  // g D1 and (1 - g) D2, of D = g D1 + (1 - g) D2
  float fall, share;
  __device__ Mixture(const KernelSettings& s, float, int head) {
    auto numbers = s.numbers_of<kind_mixture>();
    fall = numbers.fall, share = learned_number(s, 0, head, numbers.share);
  }
  __device__ float fallen(float z, float i, float j) const { return fmaf(-fall, log_normal(1 + max(i - j, 0.0f)), z); }
  __device__ float softmax(float z, const float* row, float i, float j) const {
    return Maths::exp(fallen(z, i, j), row[MAX]) * row[SUM_1];
  }
  __device__ void start_sweep(int sweep, int, float* sums, bool) const {
    if (sweep == 0) sums[MAX] = -0x1p100f, sums[SUM_1] = sums[SUM_2] = 0;
  }
  __device__ void first_sweep(float z, float* sums, float i, float j) const {
    float f = fallen(z, i, j), above = f - sums[MAX], e = Maths::exp(-fabsf(above), 0);
    sums[SUM_1] = above > 0 ? fmaf(sums[SUM_1], e, 1.0f) : sums[SUM_1] + e;
    sums[MAX] = max(sums[MAX], f);
    sums[SUM_2] += Maths::sigmoid(z);
  }
  __device__ void merge(int sweep, float* sums, const float* other) const {
    if (sweep != 0) return;
    float above = other[MAX] - sums[MAX], e = Maths::exp(-fabsf(above), 0);
    sums[SUM_1] = above > 0 ? fmaf(sums[SUM_1], e, other[SUM_1]) : fmaf(other[SUM_1], e, sums[SUM_1]);
    sums[MAX] = max(sums[MAX], other[MAX]);
    sums[SUM_2] += other[SUM_2];
  }
  __device__ void row_constants(int, const float* sums, float* row) const {
    row[MAX] = sums[MAX], row[SUM_1] = 1 / sums[SUM_1], row[SUM_2] = inverse_or_0(sums[SUM_2]);
  }
  __device__ void weigh(float z, const float* row, float*, float* weight, float i, float j) const {
    weight[1] = softmax(z, row, i, j);
    weight[0] = fmaf(share, weight[1], (1 - share) * row[SUM_2] * Maths::sigmoid(z));
  }
  __device__ void finish(int, const float* row, const float*, float* factor, float* saved) const {
    factor[0] = factor[1] = 1;
    for (int n = 0; n < SAVED; n++) saved[n] = row[n];
  }
  __device__ void row_for_backward(int, const float* saved, const float* dot, float* row) const {
    for (int n = 0; n < SAVED; n++) row[n] = saved[n];
    row[DOT_1] = share * dot[1];
    row[DOT_2] = dot[0] - row[DOT_1];
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz, float i, float j) const {
    float p1 = softmax(z, row, i, j), s = Maths::sigmoid(z), p2 = s * row[SUM_2];
    p = fmaf(share, p1, (1 - share) * p2);
    dz = p1 * fmaf(share, dp, -row[DOT_1]) + p2 * (1 - s) * fmaf(1 - share, dp, -row[DOT_2]);
  }
  __device__ void add_learned(float* sums, float z, float dp, const float* row, float i, float j) const {
    sums[0] += (softmax(z, row, i, j) - Maths::sigmoid(z) * row[SUM_2]) * dp;
  }
};
template <class Maths> struct PolicyOf<kind_mixture, Maths> : OnePolicy<Mixture<Maths>> {};
#endif
