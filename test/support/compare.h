// The comparator of all kernel tests. A result x is right if, against a float64 reference ref,
//     max |x - ref| / max |ref|  <=  2 x (the same figure for the naive formula) + 2 u
// where the naive formula works op by op on the same inputs, adds left to right in float32 and rounds every op's result
// to the type the kernel stores; u is the unit roundoff of the output's type. Nothing is tuned by hand. (Tests of
// whole models that compare two ways to the same float, sums in another order or finite differences, have round bounds
// of their own.) NaN and Inf always fail. Outputs are poisoned with NaN before the launch (test/support/device.h), so
// an element that was not written fails.
//
// References are templates over one of the two policies here and never mention a type themselves:
//     template <class P> std::vector<typename P::real> f(const std::vector<typename P::real>& x) { P::round(a * b) ...
// real is the type of sums; P::round(x) rounds a value as if it had been stored in a tensor of the kernel's type.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu.cuh"
#include "test/support/device.h"

struct Exact {
  using real = double;
  static double round(double x) { return x; }
};

template <class T> struct Naive {
  using real = float;
  static float round(float x) { return to_float(from_float<T>(x)); }
};

// Half the distance from 1 to the next larger number.
template <class T> inline constexpr double unit_roundoff = 0;
template <> inline constexpr double unit_roundoff<float> = 0x1p-24;
template <> inline constexpr double unit_roundoff<bf16> = 0x1p-8;

inline double as_double(double x) { return x; }
inline double as_double(float x) { return x; }
inline double as_double(int x) { return x; }
inline double as_double(bf16 x) { return to_float(x); }

// The slope of loss() by x, which it reads, from x - h to x + h. x keeps its value.
template <class Loss> double central_difference(double& x, double h, const Loss& loss) {
  double kept = x;
  x = kept + h;
  double above = loss();
  x = kept - h;
  double below = loss();
  x = kept;
  return (above - below) / (2 * h);
}

// The inputs of a reference of policy P: the kernel's own (already rounded) inputs, widened.
template <class P, class T> std::vector<typename P::real> widen(const std::vector<T>& x) {
  std::vector<typename P::real> wide(x.size());
  for (size_t i = 0; i < x.size(); i++) wide[i] = typename P::real(as_double(x[i]));
  return wide;
}

struct Deviation {
  double error = 0;  // max |x - ref| / max |ref|; infinite when anything is NaN or Inf
  size_t worst = 0;  // where
};

// cancels: if an output is a difference of larger terms (or exactly zero), the size of those terms.
template <class X> Deviation deviation(const std::vector<X>& x, const std::vector<double>& ref, double cancels = 0) {
  double largest = cancels, difference = 0;
  Deviation result;
  for (double r : ref) largest = std::max(largest, std::fabs(r));
  for (size_t i = 0; i < ref.size(); i++) {
    double d = std::fabs(as_double(x[i]) - ref[i]);
    if (!std::isfinite(d)) return {std::numeric_limits<double>::infinity(), i};
    if (d > difference) difference = d, result.worst = i;
  }
  result.error = difference == 0 ? 0 : difference / largest;  // largest == 0: only exact zeros are right
  return result;
}

// Returns error / bound, for tests that report how much of the bound a kernel uses.
template <class X, class N>
double expect_close(const std::string& name, const std::vector<X>& output, const std::vector<double>& exact,
                    const std::vector<N>& naive, double u, double cancels = 0) {
  EXPECT_EQ(output.size(), exact.size()) << name;
  EXPECT_EQ(naive.size(), exact.size()) << name;
  if (output.size() != exact.size() || naive.size() != exact.size()) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < exact.size(); i++) {
    if (std::isfinite(exact[i]) && std::isfinite(as_double(naive[i]))) continue;
    ADD_FAILURE() << name << ": the reference itself is not finite at " << i << ": exact " << exact[i] << ", naive "
                  << as_double(naive[i]);
    return std::numeric_limits<double>::infinity();
  }
  Deviation kernel = deviation(output, exact, cancels), plain = deviation(naive, exact, cancels);
  double bound = 2 * plain.error + 2 * u;
  if (!(kernel.error <= bound)) {
    ADD_FAILURE() << name << ": error " << kernel.error << " is above " << bound << " = 2 x " << plain.error
                  << " (naive) + 2 x " << u << "; worst at " << kernel.worst << " of " << exact.size() << ": got "
                  << as_double(output[kernel.worst]) << ", float64 " << exact[kernel.worst] << ", naive "
                  << as_double(naive[kernel.worst]);
  }
  return kernel.error / bound;
}

// The error of a few numbers is a matter of chance, also that of the naive formula. So tests of small shapes repeat
// them with other random numbers, collect the outputs here and compare them together when the pool is destroyed.
class Pool {
 public:
  Pool(std::string name, double u, double cancels = 0) : name_(std::move(name)), u_(u), cancels_(cancels) {}
  Pool(const Pool&) = delete;
  ~Pool() { compare(); }

  // Returns error / bound. Nothing is left for the destructor.
  double compare() {
    double used = expect_close(name_, output_, exact_, naive_, u_, cancels_);
    output_.clear(), exact_.clear(), naive_.clear();
    return used;
  }

  template <class X, class N>
  void add(const std::vector<X>& output, const std::vector<double>& exact, const std::vector<N>& naive,
           double cancels = 0) {
    cancels_ = std::max(cancels_, cancels);
    for (const X& x : output) output_.push_back(as_double(x));
    for (const N& x : naive) naive_.push_back(as_double(x));
    exact_.insert(exact_.end(), exact.begin(), exact.end());
  }

  // for (unsigned seed : Pool::seeds(outputs)): enough of them for some 500 outputs
  static std::vector<unsigned> seeds(size_t outputs) {
    std::vector<unsigned> seeds;
    for (size_t n = 0; seeds.empty() || n < 500; n += outputs) seeds.push_back(1000 * unsigned(seeds.size() + 1));
    return seeds;
  }

 private:
  std::string name_;
  double u_, cancels_;
  std::vector<double> output_, exact_, naive_;
};

// The outputs of one run of a kernel, as double, which holds all values of their types.
using Outputs = std::vector<std::vector<double>>;
template <class... Array> Outputs outputs(const Array&... arrays) {  // here or on the device
  auto values = [](const auto& array) {
    if constexpr (requires { array.download(); }) return widen<Exact>(array.download());
    else return widen<Exact>(array);
  };
  return {values(arrays)...};
}

// A kernel at one shape: a pool for each of its outputs.
template <class T> class Kernel {
 public:
  struct Output {
    const char* name;
    double u, cancels = 0;  // as expect_close()'s
  };
  Kernel(const char* name, std::initializer_list<long> shape, std::initializer_list<Output> outputs) : name_(name) {
    for (long size : shape) name_ += format(" %ld", size);
    for (const Output& output : outputs) pools_.emplace_back(name_ + " " + output.name, output.u, output.cancels);
  }

  // run() makes outputs() from fresh inputs, all or the first of them; reference(P()) makes all of them, for a policy.
  // The first call repeats run() to see whether its bits stay.
  template <class Reference> void check(const std::function<Outputs()>& run, const Reference& reference) {
    auto bits = [&] {
      std::vector<double> all;
      for (const std::vector<double>& output : run()) all.insert(all.end(), output.begin(), output.end());
      return bits_of(all);
    };
    if (!std::exchange(repeated_, true)) expect_reproducible(name_, bits);
    Outputs result = run();
    auto exact = reference(Exact());
    auto naive = reference(Naive<T>());
    ASSERT_EQ(exact.size(), pools_.size()) << name_;
    for (size_t i = 0; i < result.size(); i++) pools_[i].add(result[i], exact[i], naive[i]);
  }

 private:
  std::string name_;
  std::deque<Pool> pools_;
  bool repeated_ = false;
};

// Rows of `width` values with `gap` further ones after each of them, all `between`; and the rows alone.
template <class X> std::vector<X> with_gaps(const std::vector<X>& rows, size_t width, size_t gap, X between) {
  std::vector<X> all;
  for (auto row = rows.begin(); row != rows.end(); row += width) {
    all.insert(all.end(), row, row + width);
    all.insert(all.end(), gap, between);
  }
  return all;
}
template <class X> std::vector<X> without_gaps(const std::vector<X>& all, size_t width, size_t gap) {
  std::vector<X> rows;
  for (auto row = all.begin(); row != all.end(); row += width + gap) rows.insert(rows.end(), row, row + width);
  return rows;
}
template <class X>
void expect_gaps(const std::string& name, const std::vector<X>& all, size_t width, size_t gap, double between) {
  for (size_t i = 0; i < all.size(); i++) {
    double x = as_double(all[i]);
    if (i % (width + gap) < width || x == between || (std::isnan(x) && std::isnan(between))) continue;
    ADD_FAILURE() << name << ": " << x << " was written between the rows, at " << i;
  }
}

template <class X> std::vector<X> without_first(std::vector<X> values, size_t count) {
  values.erase(values.begin(), values.begin() + count);
  return values;
}

template <class X, class Y>
void expect_same_bits(const std::string& name, const std::vector<X>& a, const std::vector<Y>& b) {
  static_assert(sizeof(X) == sizeof(Y));
  ASSERT_EQ(a.size(), b.size()) << name;
  for (size_t i = 0; i < a.size(); i++) {
    if (std::memcmp(&a[i], &b[i], sizeof(X)) == 0) continue;
    ADD_FAILURE() << name << ": bits differ at " << i << " of " << a.size() << ": " << as_double(a[i]) << " and "
                  << as_double(b[i]);
    return;
  }
}
