// The arithmetic of tensor cores (arXiv 2511.10909) as a reference, and inputs whose results are known.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/gpu.cuh"
#include "test/kernels/reference.h"

// c and `terms` products are cut towards zero to `digits` bits behind the point at the largest exponent of them all (of
// a product the sum of its factors' exponents; c counts as at least -126), and their exact sum to float32. Products of
// a zero take no part: seen on an H200, to the bit, while the published model gives a zero the exponent -126. Ampere is
// taken to do the same.
struct TensorCore {
  int digits, terms;

  // mma, and a product of a library, as the device does it; the CPU layer's mma is Ampere's.
  static TensorCore of_mma() { return !on_cpu && device_properties().major >= 9 ? of_wgmma() : TensorCore{24, 8}; }
  static TensorCore of_wgmma() { return {25, 16}; }

  // sum + the products a(k) b(k) for k < n
  template <class A, class B> float add(float sum, int n, A a, B b) const {
    for (int first = 0; first < n; first += terms) {
      double plain = sum, cut = 0;
      int e = exponent(sum), end = std::min(n, first + terms);
      for (int k = first; k < end; k++) {
        plain += double(a(k)) * b(k);
        if (a(k) != 0 && b(k) != 0) e = std::max(e, exponent(a(k)) + exponent(b(k)));
      }
      auto add_cut = [&](double term) { cut += std::trunc(std::ldexp(term, digits - e)); };
      add_cut(sum);
      for (int k = first; k < end; k++) add_cut(double(a(k)) * b(k));
      sum = std::isfinite(plain) ? cut_to_float(std::ldexp(cut, e - digits)) : float(plain);
    }
    return sum;
  }

 private:
  static int exponent(float x) { return x == 0 ? -126 : std::max(std::ilogb(x), -126); }
  static float cut_to_float(double x) {
    float nearest = float(x);
    bool further = std::fabs(x) < 0x1p128 && std::fabs(double(nearest)) > std::fabs(x);
    return further ? std::nextafter(nearest, 0.0f) : nearest;
  }
};

// Float32 in which products are added as on tensor cores, for references that add by add_all() of reference.h.
struct OnTensorCores {
  using real = float;
  static float round(float x) { return x; }
  template <class A, class B> static float add_all(float sum, int n, A a, B b) {
    return TensorCore::of_mma().add(sum, n, a, b);
  }
};
struct OnWgmma : OnTensorCores {
  template <class A, class B> static float add_all(float sum, int n, A a, B b) {
    return TensorCore::of_wgmma().add(sum, n, a, b);
  }
};

// A [16, 16], B [16, 8] and sums C [16, 8] whose results, as a hash of their bits, row by row, come from a model of the
// published rule in Python's integers, which was equal to its authors' simulator in 40,000 steps.
struct KnownProduct {
  unsigned ampere, hopper;
  int exponent, exponents;  // of the inputs: as of bits, the lowest and how many
  bool positive;            // without minus signs and zeros
};
inline constexpr KnownProduct KNOWN_PRODUCTS[] = {{0x4f9aebc, 0x6345c922, 125, 5, false},
                                                  {0x973da5b3, 0x973da5b3, 124, 4, true},
                                                  {0x3cd10891, 0x26be2c2b, 100, 56, false},
                                                  {0x7b709406, 0x2ec611ed, 1, 200, false}};
struct KnownInputs {
  std::vector<float> a, b, c;
  KnownInputs(const KnownProduct& known, unsigned seed) : a(16 * 16), b(16 * 8), c(16 * 8) {
    auto draw = [&] { return (seed = seed * 1664525 + 1013904223) >> 8; };
    for (std::vector<float>* x : {&a, &b, &c})
      for (float& value : *x) {
        unsigned mantissa = x == &c ? draw() & 0x7fffff : (draw() & 0x7f) << 16;
        unsigned exponent = unsigned(known.exponent) + draw() % unsigned(known.exponents);
        unsigned bits = exponent << 23 | mantissa;
        if (!known.positive) bits |= (draw() & 1) << 31;
        if (!known.positive && draw() % 8 == 0) bits = 0;
        memcpy(&value, &bits, 4);
      }
  }
};
inline unsigned hash_of(const std::vector<float>& values) {  // FNV-1a
  unsigned hash = 2166136261;
  for (float value : values) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    for (int i = 0; i < 4; i++) hash = (hash ^ (bits >> 8 * i & 255)) * 16777619;
  }
  return hash;
}
