// The contracts of kernels/gpu.cuh: conversions, launches, warp operations, fragment layouts (written here again,
// element by element, from the tables of the PTX manual) and cp.async. The same tests pass on a GPU and on the CPU
// layer; cpu_layer_test.cu tests the features that only the layer has.
#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>
#include "kernels/gpu.cuh"
#include "test/support/device.h"
#include "test/support/error_of.h"

namespace {

// ---- products of registers ----------------------------------------------------------------------------------------

template <int R, int E>
__global__ void products_kernel(float* sums, int count, const float* one, int stride, int step, const float* many,
                                int many_step) {
  float a[R][E];
  for (int i = 0; i < R * E; i++) a[i / E][i % E] = float(i);
  add_products(a, count, one, stride, step, many, many_step);
  for (int i = 0; i < R * E; i++) sums[i] = a[i / E][i % E];
}

// Small whole numbers: every sum is exact. What lies beside the numbers to be read is NaN.
template <int R, int E> void check_products(int count, int stride, int step, int many_step) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> one((R - 1) * stride + count * step + 1, nan), many(count * many_step + E, nan), expected(R * E);
  for (int r = 0; r < R; r++)
    for (int n = 0; n < count; n++) one[r * stride + n * step] = float((3 * r + 5 * n) % 11 - 5);
  for (int n = 0; n < count; n++)
    for (int e = 0; e < E; e++) many[n * many_step + e] = float((7 * n + 2 * e) % 13 - 6);
  for (int i = 0; i < R * E; i++) {
    expected[i] = float(i);
    for (int n = 0; n < count; n++) expected[i] += one[i / E * stride + n * step] * many[n * many_step + i % E];
  }
  DeviceArray<float> sums(R * E), d_one(one), d_many(many);
  LAUNCH((products_kernel<R, E>), dim3(1), dim3(1), 0, nullptr, sums, count, d_one, stride, step, d_many, many_step);
  EXPECT_EQ(sums.download(), expected) << R << " " << E << " " << count;
}
TEST(Registers, AddProducts) {
  check_products<1, 16>(1, 0, 1, 16);
  check_products<3, 16>(33, 40, 1, 20);
  check_products<8, 16>(64, 1, 68, 36);
  check_products<16, 32>(7, 9, 1, 32);
  check_products<2, 16>(0, 1, 1, 16);
}

// ---- conversions --------------------------------------------------------------------------------------------------

bf16 from_bits(unsigned bits) { return __ushort_as_bfloat16(static_cast<unsigned short>(bits)); }
unsigned bits_of(bf16 v) {
  unsigned short bits;
  memcpy(&bits, &v, 2);
  return bits;
}

// By the definition of the format: the upper half of a float32.
float value_of(unsigned bits) { return std::bit_cast<float>(bits << 16); }
constexpr unsigned infinity = 0x7f80;

__global__ void widen_all(float* out) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = to_float(__ushort_as_bfloat16(static_cast<unsigned short>(i)));
}
__global__ void round_all(bf16* out, const float* in) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = from_float<bf16>(in[i]);
}

TEST(Conversions, Bf16ExhaustivelyToNearestEven) {
  constexpr int n = 1 << 16;
  DeviceArray<float> widened(n);
  LAUNCH(widen_all, n / 256, 256, 0, nullptr, widened);
  std::vector<float> values = widened.download();
  int wrong = 0;
  for (unsigned i = 0; i < n; ++i) {
    float expected = value_of(i);
    bool same = std::isnan(expected) ? std::isnan(values[i])
                                     : values[i] == expected && std::signbit(values[i]) == std::signbit(expected);
    if (!same && ++wrong < 5) ADD_FAILURE() << std::hex << i << " widens to " << values[i] << ", not " << expected;
    EXPECT_EQ(std::isnan(expected), std::isnan(to_float(from_bits(i))));  // the host's conversion
  }

  // For any two neighbours: the two, the middle (to even), and the floats on both sides of the middle. For the largest
  // number, infinity takes the place of its neighbour.
  std::vector<float> inputs;
  std::vector<unsigned> expected;
  for (unsigned sign : {0u, 0x8000u})
    for (unsigned i = 0; i < infinity; ++i) {
      double low = value_of(i), high = i + 1 < infinity ? value_of(i + 1) : 2 * low - value_of(i - 1);
      float middle = static_cast<float>((low + high) / 2);
      float s = sign ? -1.0f : 1.0f;
      auto add = [&](float x, unsigned bits) { inputs.push_back(s * x), expected.push_back(bits | sign); };
      add(static_cast<float>(low), i);
      add(middle, i % 2 ? i + 1 : i);
      add(std::nextafter(middle, 0.0f), i);
      add(std::nextafter(middle, std::numeric_limits<float>::infinity()), i + 1);
    }
  inputs.push_back(std::numeric_limits<float>::infinity()), expected.push_back(infinity);
  inputs.push_back(std::numeric_limits<float>::max()), expected.push_back(infinity);
  inputs.push_back(-std::numeric_limits<float>::infinity()), expected.push_back(infinity | 0x8000);
  inputs.push_back(1e-44f), expected.push_back(0);
  size_t numbers = inputs.size();
  for (unsigned payload : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu, 0x7fa00000u}) {
    float nan;
    memcpy(&nan, &payload, 4);
    inputs.push_back(nan), expected.push_back(0x7fff);
  }
  while (inputs.size() % 256) inputs.push_back(0), expected.push_back(0);
  DeviceArray<float> in(inputs);
  DeviceArray<bf16> rounded(inputs.size());
  LAUNCH(round_all, inputs.size() / 256, 256, 0, nullptr, rounded, in);
  std::vector<bf16> outputs = rounded.download();
  for (size_t i = 0; i < inputs.size(); ++i) {
    unsigned host = bits_of(from_float<bf16>(inputs[i])), device = bits_of(outputs[i]);
    bool nan = i >= numbers && expected[i] == 0x7fff;  // the host side of a CUDA build may give any NaN
    if ((device != expected[i] || (nan ? !std::isnan(value_of(host)) : host != expected[i])) && ++wrong < 10)
      ADD_FAILURE() << inputs[i] << " rounds to " << std::hex << device << " (host " << host << "), not "
                    << expected[i];
  }
  EXPECT_EQ(wrong, 0);
}

// ---- launch and memory --------------------------------------------------------------------------------------------

__global__ void who(int* out) {
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  int* mine = out + 6 * (block * threads + thread);
  mine[0] = blockIdx.x, mine[1] = blockIdx.y, mine[2] = blockIdx.z;
  mine[3] = threadIdx.x, mine[4] = threadIdx.y, mine[5] = threadIdx.z;
}

TEST(Launch, EveryThreadOfEveryBlockOnce) {
  dim3 grid(3, 4, 2), block(5, 3, 7);
  DeviceArray<int> out(6 * 24 * 105);
  LAUNCH(who, grid, block, 0, nullptr, out);
  std::vector<int> seen = out.download();
  for (int b = 0, i = 0; b < 24; ++b)
    for (int t = 0; t < 105; ++t) {
      int expected[6] = {b % 3, b / 3 % 4, b / 12, t % 5, t / 5 % 3, t / 15};
      for (int e : expected) ASSERT_EQ(seen[i++], e) << "block " << b << " thread " << t;
    }
}

__global__ void convert_arguments(double* out, size_t n, float x, const int* nothing) {
  *out = nothing ? -1 : static_cast<double>(n) + x;
}
TEST(Launch, ArgumentsAreConvertedToParameters) {
  DeviceArray<double> out(1);
  LAUNCH(convert_arguments, 1, 1, 0, nullptr, out, 3, 0.5, nullptr);
  EXPECT_EQ(out.download()[0], 3.5);
}

__global__ void nothing() {}
TEST(Launch, ImpossibleOnesNameTheKernel) {
  struct {
    dim3 grid, block;
    size_t shared;
  } impossible[] = {{1, 1025, 0}, {1, 0, 0}, {0, 32, 0}, {dim3(1, 70000), 32, 0}, {1, 32, 300000}};
  for (auto& i : impossible) {
    expect_has(error_of([&] { LAUNCH(nothing, i.grid, i.block, i.shared, nullptr); }), {"kernel nothing"});
  }
  LAUNCH(nothing, 1, 32, 0, nullptr);  // and nothing is left behind
  CUDA_CHECK(cudaDeviceSynchronize());
}

__global__ void reverse_block(float* x) {
  DYNAMIC_SHARED(float, all);
  __shared__ float some[64];
  int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
  all[t] = x[blockIdx.x * n + t];
  if (t < 64) some[t] = x[blockIdx.x * n + t];
  __syncthreads();
  x[blockIdx.x * n + t] = t < 64 ? all[n - 1 - t] + some[63 - t] : all[n - 1 - t];
}
TEST(Launch, SharedMemoryAndBarriers) {
  for (int n : {64, 96, 100, 1024}) {
    std::vector<float> values(static_cast<size_t>(3 * n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    DeviceArray<float> x(values);
    LAUNCH(reverse_block, 3, n, sizeof(float) * n, nullptr, x);
    std::vector<float> out = x.download();
    for (int b = 0; b < 3; ++b)
      for (int t = 0; t < n; ++t)
        ASSERT_EQ(out[b * n + t], values[b * n + n - 1 - t] + (t < 64 ? values[b * n + 63 - t] : 0.0f));
  }
}

__global__ void fill_large(unsigned char* out, int bytes) {
  DYNAMIC_SHARED(unsigned char, all);
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) all[i] = static_cast<unsigned char>(i * 7 + 3);
  __syncthreads();
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = all[bytes - 1 - i];
}
TEST(Launch, DynamicSharedMemoryBeyond48K) {
  int bytes = 96 << 10;
  DeviceArray<unsigned char> out(static_cast<size_t>(bytes));
  LAUNCH(fill_large, 1, 128, bytes, nullptr, out, bytes);
  std::vector<unsigned char> seen = out.download();
  for (int i = 0; i < bytes; ++i) ASSERT_EQ(seen[i], static_cast<unsigned char>((bytes - 1 - i) * 7 + 3));
}

template <class T> __global__ void copy16(T* out, const T* in) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * 2 * Pack<T>::size;
  Pack<T> a = load16(in + i), b = load16(in + i + Pack<T>::size);
  store16(out + i + Pack<T>::size, a);
  store16(out + i, b);
}
template <class T> void check_packs() {
  static_assert(sizeof(Pack<T>) == 16 && alignof(Pack<T>) == 16 && Pack<T>::size * sizeof(T) == 16);
  size_t n = 64 * 2 * Pack<T>::size;
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = from_float<T>(static_cast<float>(i));
  DeviceArray<T> in(values), out(n);
  LAUNCH(copy16<T>, 2, 32, 0, nullptr, out, in);
  std::vector<T> seen = out.download();
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(to_float(seen[i]), to_float(values[i ^ Pack<T>::size]));
}
TEST(Packs, SixteenBytesAtATime) { check_packs<float>(), check_packs<bf16>(); }

// ---- warp operations ----------------------------------------------------------------------------------------------

struct Shuffled {
  int at, mixed, up, from_lane;
  unsigned vote;
  float real;
};
__global__ void shuffle_all(Shuffled* out, int lane, int mask, int delta) {
  int t = threadIdx.x, v = 100 * (t / WARP) + t % WARP;
  Shuffled s;
  s.at = shuffle(v, lane);
  s.mixed = shuffle_xor(v, mask);
  s.up = shuffle_up(v, delta);
  s.from_lane = static_cast<int>(shuffle(static_cast<unsigned>(v), (5 * t + lane) % WARP));
  s.vote = warp_ballot(t % (lane + 2) == 1);
  s.real = shuffle_xor(0.5f * v, mask);
  out[t] = s;
}
TEST(Warp, ShufflesAndBallot) {
  constexpr int n = 96;
  DeviceArray<Shuffled> out(n);
  for (int lane : {0, 1, 13, 31})
    for (int mask : {1, 2, 5, 16, 31})
      for (int delta : {0, 1, 7, 31}) {
        LAUNCH(shuffle_all, 1, n, 0, nullptr, out, lane, mask, delta);
        std::vector<Shuffled> seen = out.download();
        for (int t = 0; t < n; ++t) {
          int w = t / WARP, l = t % WARP;
          auto value = [&](int from) { return 100 * w + from; };
          unsigned vote = 0;
          for (int i = 0; i < WARP; ++i) vote |= ((w * WARP + i) % (lane + 2) == 1 ? 1u : 0u) << i;
          ASSERT_EQ(seen[t].at, value(lane));
          ASSERT_EQ(seen[t].mixed, value(l ^ mask));
          ASSERT_EQ(seen[t].up, value(l >= delta ? l - delta : l));
          ASSERT_EQ(seen[t].from_lane, value((5 * t + lane) % WARP));
          ASSERT_EQ(seen[t].vote, vote);
          ASSERT_EQ(seen[t].real, 0.5f * value(l ^ mask));
        }
      }
}

template <int X> __global__ void reduce_all(float* out, const float* in) {
  int t = threadIdx.x;
  float sum[X], max[X];
  for (int x = 0; x < X; ++x) sum[x] = max[x] = in[t * X + x];
  warp_sum(sum);
  warp_max(max);
  for (int x = 0; x < X; ++x) out[(t * X + x) * 4] = sum[x], out[(t * X + x) * 4 + 1] = max[x];
  out[t * X * 4 + 2] = warp_sum(in[t * X]);
  out[t * X * 4 + 3] = warp_max(in[t * X]);
}
template <int X> void check_reductions() {
  constexpr int n = 64;
  std::vector<float> values = random_normal<float>(n * X, X, 100);
  DeviceArray<float> in(values), out(n * X * 4);
  LAUNCH(reduce_all<X>, 1, n, 0, nullptr, out, in);
  std::vector<float> seen = out.download();
  for (int w = 0; w < n / WARP; ++w)
    for (int x = 0; x < X; ++x) {
      float tree[WARP], max = -INFINITY;  // the butterfly, as lane 0 sees it
      for (int l = 0; l < WARP; ++l) tree[l] = values[(w * WARP + l) * X + x], max = std::max(max, tree[l]);
      for (int half = WARP / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) tree[l] += tree[l + half];
      for (int l = 0; l < WARP; ++l) {
        const float* mine = &seen[((w * WARP + l) * X + x) * 4];
        ASSERT_EQ(mine[0], tree[0]) << "the same bits in every lane, lane " << l;
        ASSERT_EQ(mine[1], max);
        if (x > 0) continue;
        ASSERT_EQ(mine[2], tree[0]);
        ASSERT_EQ(mine[3], max);
      }
    }
}
TEST(Warp, ReductionsGiveEveryLaneTheSameBits) { check_reductions<1>(), check_reductions<2>(), check_reductions<5>(); }

// ---- fragments ----------------------------------------------------------------------------------------------------

// PTX manual, "Matrix Fragments for mma.m16n8k16 with floating point type": the place of element i of a lane's
// fragment.
struct Place {
  int row, column;
};
Place place_of_a(int lane, int i) {  // a0 .. a7
  int group = lane >> 2, in_group = lane % 4;
  return {(0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
Place place_of_b(int lane, int i) {  // b0 .. b3
  int group = lane >> 2, in_group = lane % 4;
  return {in_group * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
}
Place place_of_c(int lane, int i) {  // c0 .. c3
  int group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

template <int M, int N> __global__ void multiply(float* d, const unsigned* a, const unsigned* b) {
  int lane = threadIdx.x;
  float sums[M][N][4];
  unsigned fragment_a[M][4], fragment_b[N][2];
  for (int i = 0; i < M; ++i)
    for (int r = 0; r < 4; ++r) fragment_a[i][r] = a[(i * WARP + lane) * 4 + r];
  for (int j = 0; j < N; ++j)
    for (int r = 0; r < 2; ++r) fragment_b[j][r] = b[(j * WARP + lane) * 2 + r];
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j)
      for (int r = 0; r < 4; ++r) sums[i][j][r] = d[((i * N + j) * WARP + lane) * 4 + r];
  mma_m16n8k16(sums, fragment_a, fragment_b);
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j)
      for (int r = 0; r < 4; ++r) d[((i * N + j) * WARP + lane) * 4 + r] = sums[i][j][r];
}

template <int M, int N> void check_mma() {
  std::mt19937 random(M * 100 + N);
  auto small = [&] { return static_cast<float>(static_cast<int>(random() % 17) - 8); };  // sums of products are exact
  std::vector<float> A(M * 16 * 16), B(16 * N * 8), C(M * 16 * N * 8);
  for (auto* matrix : {&A, &B, &C})
    for (float& v : *matrix) v = small();
  auto pair = [](float low, float high) {
    return bits_of(from_float<bf16>(low)) | bits_of(from_float<bf16>(high)) << 16;
  };
  std::vector<unsigned> a(M * WARP * 4), b(N * WARP * 2);
  std::vector<float> d(M * N * WARP * 4), expected(d.size());
  for (int lane = 0; lane < WARP; ++lane) {
    for (int i = 0; i < M; ++i)
      for (int r = 0; r < 4; ++r) {
        Place low = place_of_a(lane, 2 * r), high = place_of_a(lane, 2 * r + 1);
        a[(i * WARP + lane) * 4 + r] =
            pair(A[(i * 16 + low.row) * 16 + low.column], A[(i * 16 + high.row) * 16 + high.column]);
      }
    for (int j = 0; j < N; ++j)
      for (int r = 0; r < 2; ++r) {
        Place low = place_of_b(lane, 2 * r), high = place_of_b(lane, 2 * r + 1);
        b[(j * WARP + lane) * 2 + r] =
            pair(B[low.row * N * 8 + j * 8 + low.column], B[high.row * N * 8 + j * 8 + high.column]);
      }
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j)
        for (int r = 0; r < 4; ++r) {
          Place p = place_of_c(lane, r);
          int row = i * 16 + p.row, column = j * 8 + p.column;
          float sum = d[((i * N + j) * WARP + lane) * 4 + r] = C[row * N * 8 + column];
          for (int k = 0; k < 16; ++k) sum += A[row * 16 + k] * B[k * N * 8 + column];
          expected[((i * N + j) * WARP + lane) * 4 + r] = sum;
        }
  }
  DeviceArray<unsigned> device_a(a), device_b(b);
  DeviceArray<float> device_d(d);
  LAUNCH((multiply<M, N>), 1, WARP, 0, nullptr, device_d, device_a, device_b);
  EXPECT_EQ(device_d.download(), expected) << M << " x " << N << " tiles";
}
TEST(Fragments, MmaBf16) {
  check_mma<1, 1>(), check_mma<1, 2>(), check_mma<2, 1>(), check_mma<2, 3>(), check_mma<4, 4>();
  check_mma<2, 8>(), check_mma<1, 9>(), check_mma<1, 10>();
}

// Wide range, products that are not exact: within float32 rounding of the exact dot product.
TEST(Fragments, MmaAccumulatesInFloat) {
  std::vector<unsigned> a(WARP * 4), b(WARP * 2);
  std::vector<float> d(WARP * 4, 1.0f);
  float tiny = 0x1p-13f;
  for (unsigned& v : a) v = bits_of(from_float<bf16>(tiny)) * 0x10001u;
  for (unsigned& v : b) v = bits_of(from_float<bf16>(1.0f)) * 0x10001u;
  DeviceArray<unsigned> device_a(a), device_b(b);
  DeviceArray<float> device_d(d);
  LAUNCH((multiply<1, 1>), 1, WARP, 0, nullptr, device_d, device_a, device_b);
  for (float v : device_d.download()) EXPECT_EQ(v, 1.0f + 16 * tiny);
}

template <int X, bool transposed>
__global__ void load_matrices(unsigned* out, const unsigned short* in, const int* order) {
  __shared__ __align__(16) unsigned short tile[X * 4 * 64];
  for (int i = threadIdx.x; i < X * 4 * 64; i += WARP) tile[i] = in[i];
  __syncthreads();
  int lane = threadIdx.x;
  const void* rows[X];
  for (int x = 0; x < X; ++x) rows[x] = tile + order[x * WARP + lane] * 8;
  unsigned r[X][4];
  if constexpr (transposed) ldmatrix_x4_trans(r, rows);
  else ldmatrix_x4(r, rows);
  for (int x = 0; x < X; ++x)
    for (int i = 0; i < 4; ++i) out[(x * WARP + lane) * 4 + i] = r[x][i];
}

// PTX manual, ldmatrix: threads 8i .. 8i + 7 address the rows of matrix i; each thread receives of each matrix a
// fragment of two elements, thread 0 the first two of row 0, thread 3 the last two, thread 4 the first two of row 1,
// and so on. With .trans the matrix is loaded in column-major order.
template <int X, bool transposed> void check_ldmatrix() {
  std::vector<unsigned short> values(X * 4 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<unsigned short>(i * 31 + 5);
  std::vector<int> order(X * WARP);  // rows in any order, some twice
  std::mt19937 random(X);
  for (int& row : order) row = static_cast<int>(random() % (X * 32));
  DeviceArray<unsigned short> in(values);
  DeviceArray<int> rows(order);
  DeviceArray<unsigned> out(X * WARP * 4);
  LAUNCH((load_matrices<X, transposed>), 1, WARP, 0, nullptr, out, in, rows);
  std::vector<unsigned> seen = out.download();
  for (int x = 0; x < X; ++x)
    for (int lane = 0; lane < WARP; ++lane)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e) {
          int major = lane / 4, minor = lane % 4 * 2 + e;
          int row = transposed ? minor : major, column = transposed ? major : minor;
          unsigned short expected = values[order[x * WARP + i * 8 + row] * 8 + column];
          ASSERT_EQ(seen[(x * WARP + lane) * 4 + i] >> (16 * e) & 0xffff, expected)
              << "tile " << x << " lane " << lane << " matrix " << i << " element " << e;
        }
}
TEST(Fragments, Ldmatrix) { check_ldmatrix<1, false>(), check_ldmatrix<3, false>(); }
TEST(Fragments, LdmatrixTransposed) { check_ldmatrix<1, true>(), check_ldmatrix<3, true>(); }

// ---- cp.async -----------------------------------------------------------------------------------------------------

// The content of shared memory after each step: before the copies, after them, after waits for all but 1 and for all
// groups.
__global__ void copy_in_groups(float4* out, const float4* in) {
  __shared__ float4 tile[3][WARP];
  int t = threadIdx.x, step = 0;
  for (int i = 0; i < 3; ++i) tile[i][t] = make_float4(-1, -1, -1, -1);
  auto record = [&] {
    for (int i = 0; i < 3; ++i) out[(step * 3 + i) * WARP + t] = tile[i][t];
    ++step;
  };
  cp_async16(&tile[0][t], in + t);
  cp_async_commit();
  cp_async16(&tile[1][t], in + WARP + t);
  cp_async16(&tile[2][t], in + 2 * WARP + t, t % 2 == 0);
  cp_async_commit();
  record();
  cp_async_wait<1>();
  record();
  cp_async_wait<0>();
  record();
}
TEST(CpAsync, ArrivesAtItsWaitAndNotBeforeOnTheCpu) {
  std::vector<float4> values(3 * WARP);
  for (size_t i = 0; i < values.size(); ++i) values[i] = make_float4(i + 1.0f, i + 2.0f, i + 3.0f, i + 4.0f);
  DeviceArray<float4> in(values), out(9 * WARP);
  LAUNCH(copy_in_groups, 1, WARP, 0, nullptr, out, in);
  std::vector<float4> seen = out.download();
  for (int step = 0; step < 3; ++step)
    for (int i = 0; i < 3; ++i)
      for (int t = 0; t < WARP; ++t) {
        bool arrived = i == 0 ? step >= 1 : step == 2;
        if (!arrived && !on_cpu) continue;  // on a GPU it may arrive early
        float4 expected = !arrived          ? make_float4(-1, -1, -1, -1)
                          : i == 2 && t % 2 ? make_float4(0, 0, 0, 0)
                                            : values[i * WARP + t];
        EXPECT_EQ(memcmp(&seen[(step * 3 + i) * WARP + t], &expected, 16), 0) << "step " << step << " copy " << i;
      }
}

__global__ void commit_twice(float4* out, const float4* in) {
  __shared__ float4 tile[WARP];
  int t = threadIdx.x;
  cp_async_commit();  // empty groups count
  cp_async16(&tile[t], in + t);
  cp_async_commit();
  cp_async_commit();
  cp_async_wait<1>();
  out[t] = tile[t];
}
TEST(CpAsync, EmptyGroupsCount) {
  std::vector<float4> values(WARP, make_float4(1, 2, 3, 4));
  DeviceArray<float4> in(values), out(WARP);
  LAUNCH(commit_twice, 1, WARP, 0, nullptr, out, in);
  for (const float4& v : out.download()) EXPECT_EQ(v.w, 4.0f);
}

// ---- maths --------------------------------------------------------------------------------------------------------

__global__ void all_maths(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = in[i];
  out[i] = expf(x), out[n + i] = logf(x), out[2 * n + i] = fast_exp2(x), out[3 * n + i] = fast_log2(x);
  out[4 * n + i] = fast_exp(x), out[5 * n + i] = fast_reciprocal(x);
  out[6 * n + i] = fmaxf(x, 1.0f), out[7 * n + i] = fminf(x, 1.0f), out[8 * n + i] = rsqrtf(x);
}
TEST(Maths, CloseToExact) {
  std::vector<float> inputs = {0.0f,   -0.0f,  1.0f,    INFINITY, -INFINITY, NAN,         1e-40f,
                               88.7f,  89.0f,  -87.0f,  -100.0f,  -104.5f,   3.4e38f,     -3.4e38f,
                               127.9f, 128.0f, -126.0f, -149.0f,  -150.0f,   0.99999994f, 1.0000001f};
  std::mt19937 random(1);
  while (inputs.size() < 1 << 14) inputs.push_back(std::uniform_real_distribution<float>(-110, 95)(random));
  while (inputs.size() < 1 << 15) inputs.push_back(std::exp(std::uniform_real_distribution<float>(-80, 80)(random)));
  while (inputs.size() < 1 << 16) inputs.push_back(std::uniform_real_distribution<float>(0.5f, 2)(random));
  int n = static_cast<int>(inputs.size());
  DeviceArray<float> in(inputs), out(9 * inputs.size());
  LAUNCH(all_maths, n / 256, 256, 0, nullptr, out, in, n);
  std::vector<float> seen = out.download();
  int wrong = 0;
  auto check = [&](const char* name, int which, int i, double exact, double relative, double absolute) {
    float y = seen[static_cast<size_t>(which) * n + i], rounded = static_cast<float>(exact);
    bool ok = std::isfinite(rounded) ? std::fabs(y - exact) <= relative * std::fabs(exact) + absolute
              : std::isnan(rounded)  ? std::isnan(y)
                                     : y == rounded;
    if (!ok && ++wrong < 10) ADD_FAILURE() << name << "(" << inputs[i] << ") = " << y << ", not " << exact;
  };
  double ulp = 0x1p-23, smallest = 0x1p-126;  // subnormal numbers may be 0
  for (int i = 0; i < n; ++i) {
    double x = inputs[i];
    check("expf", 0, i, std::exp(x), 2.1 * ulp, smallest);
    if (!(x > 0 && x < smallest)) check("logf", 1, i, std::log(x), 2.1 * ulp, 0);
    check("fast_exp2", 2, i, std::exp2(x), 4 * ulp, 0x1p-126);
    if (x == 0 || x >= 0x1p-126) check("fast_log2", 3, i, std::log2(x), 4 * ulp, 4 * ulp);
    check("fast_exp", 4, i, std::exp(x), (4 + std::min(std::fabs(x), 150.0)) * ulp, 0x1p-126);
    if (std::fabs(x) >= 0x1p-126 && std::fabs(x) < 0x1p126) check("fast_reciprocal", 5, i, 1 / x, 2 * ulp, 0);
    check("fmaxf", 6, i, std::isnan(x) || x < 1 ? 1 : x, 0, 0);
    check("fminf", 7, i, std::isnan(x) || x > 1 ? 1 : x, 0, 0);
    if (x >= 0x1p-126) check("rsqrtf", 8, i, 1 / std::sqrt(x), 4 * ulp, 0);
  }
  EXPECT_EQ(wrong, 0);
}

// ---- streams, events, the device ----------------------------------------------------------------------------------

TEST(Runtime, StreamsEventsAndMemory) {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaStreamCreate(&stream));
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  CUDA_CHECK(cudaEventRecord(begin, stream));
  char *device = nullptr, *host = nullptr;
  CUDA_CHECK(cudaMalloc(&device, 1000));
  CUDA_CHECK(cudaMallocHost(&host, 1000));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(device) % 256, 0u);
  CUDA_CHECK(cudaMemsetAsync(device, 0x5a, 1000, stream));
  CUDA_CHECK(cudaMemcpyAsync(host, device, 1000, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaEventRecord(end, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  float ms = -1;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  EXPECT_GE(ms, 0.0f);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(host[i], 0x5a);
  CUDA_CHECK(cudaMemcpy2DAsync(device, 7, "abcdefghijkl", 4, 3, 3, cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaMemcpy(host, device, 20, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::string(host, 20), "abcZZZZefgZZZZijkZZZ");
  CUDA_CHECK(cudaFree(device));
  CUDA_CHECK(cudaFreeHost(host));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  CUDA_CHECK(cudaStreamDestroy(stream));
}

TEST(Runtime, TheDeviceAndItsLimits) {
  int count = 0;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  ASSERT_GE(count, 1);
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(properties.warpSize, WARP);
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  EXPECT_GT(free, 0u);
  EXPECT_LE(free, total);
  void* p = &count;
  EXPECT_EQ(cudaMalloc(&p, size_t(1) << 60), cudaErrorMemoryAllocation);
  cudaGetLastError();
  expect_has(error_of([] { CUDA_CHECK(cudaErrorInvalidValue); }), {"portability_test.cu:", "invalid argument"});
}

}  // namespace
