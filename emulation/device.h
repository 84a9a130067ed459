// The CPU half of kernels/gpu.cuh, which has the contracts and includes this.
#pragma once
#include <string.h>
#include <tuple>
#include "emulation/pool.h"
#include "emulation/streams.h"
#include "emulation/warp.h"
#include "kernels/gpu.cuh"

constexpr bool on_cpu = true;
#define CPU_OUT_OF_LINE __attribute__((noinline))

inline void set_cpu_threads(int n) { cpu::set_pool_threads(n); }
inline int cpu_threads() { return cpu::pool_threads(); }
inline void set_cpu_order(CpuOrder order, unsigned seed) {
  cpu::knobs.order = static_cast<cpu::Order>(order);
  cpu::knobs.seed = seed;
}
inline void set_cpu_poison(bool on) { cpu::knobs.poison = on; }

template <class... P> cudaError_t load_kernel(void (*)(P...)) { return cudaSuccess; }

template <class... P, class... A>
void launch_kernel(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
  struct Call {
    void (*kernel)(P...);
    std::tuple<std::decay_t<P>...> arguments;
  };
  Call call{kernel, {static_cast<P>(std::forward<A>(arguments))...}};
  ProfileScope scope(name, stream, {.launched = static_cast<int>(grid.x * grid.y * grid.z)});
  cpu::Launch launch{name,
                     grid,
                     block,
                     shared_bytes,
                     [](const void* p) {
                       const Call& c = *static_cast<const Call*>(p);
                       do std::apply(c.kernel, c.arguments);
                       while (cpu::next_fresh());
                     },
                     &call};
  if (cpu::streams_at_once()) return cpu::run(launch);
  auto kept = std::make_shared<Call>(call);
  launch.arguments = kept.get();
  cpu::put_kernel_on(stream, launch, kept);
}

#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(cpu::here.dynamic_shared)

// In vector registers: g++ does not keep an array of sums there by itself, unless it is small. So many rows at once
// that their sums take three of four registers; the others are for what is multiplied.
template <int R, int E, int BLOCK = 0>
CPU_OUT_OF_LINE void add_products(float (&a)[R][E], int count, const float* one, int stride, int step,
                                  const float* many, int many_step) {
#ifdef __AVX512F__
  constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
  constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__SSE__)
  constexpr int LANES = 4, REGISTERS = 16;
#else
  constexpr int LANES = 4, REGISTERS = 32;
#endif
  // A local variable keeps a vector's alignment: in the stack frames that AddressSanitizer makes, on by default since
  // g++ 13, g++ places one of less alignment by what was declared and yet writes it with aligned moves.
  typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
  // Copied, not cast: in a template g++ 11.2 forgets that a type has less alignment, and reads with aligned moves.
  auto load = [](const float* from) {
    Vector v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
  };
  constexpr int PARTS = E / LANES, MOST = REGISTERS * 3 / 4, BLOCKS = (R * PARTS + MOST - 1) / MOST;
  constexpr int FIRST = R * BLOCK / BLOCKS, ROWS = R * (BLOCK + 1) / BLOCKS - FIRST;
  static_assert(E % LANES == 0);
  Vector sums[ROWS][PARTS];
#pragma GCC unroll 64
  for (int i = 0; i < ROWS * PARTS; i++) sums[i / PARTS][i % PARTS] = load(&a[FIRST + i / PARTS][i % PARTS * LANES]);
  for (int n = 0; n < count; n++) {
    const float *s = one + FIRST * stride + n * step, *v = many + n * many_step;
#pragma GCC unroll 64
    for (int i = 0; i < ROWS * PARTS; i++)
      sums[i / PARTS][i % PARTS] += s[i / PARTS * stride] * load(v + i % PARTS * LANES);
  }
#pragma GCC unroll 64
  for (int i = 0; i < ROWS * PARTS; i++)
    __builtin_memcpy(&a[FIRST + i / PARTS][i % PARTS * LANES], &sums[i / PARTS][i % PARTS], sizeof(Vector));
  if constexpr (BLOCK + 1 < BLOCKS) add_products<R, E, BLOCK + 1>(a, count, one, stride, step, many, many_step);
}

// The last two parameters of every meeting: the calling line, for reports.
#define CPU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void warp_sync(CPU_SITE) { cpu::warp_sync(file, line); }
inline unsigned warp_ballot(bool v, CPU_SITE) { return cpu::vote(file, line, v); }
template <class T> inline T shuffle(T v, int lane, CPU_SITE) { return cpu::shuffle("shuffle", file, line, v, lane); }
template <class T> inline T shuffle_xor(T v, int mask, CPU_SITE) {
  return cpu::shuffle("shuffle_xor", file, line, v, cpu::self->lane ^ mask);
}
template <class T> inline T shuffle_up(T v, int delta, CPU_SITE) {
  int lane = cpu::self->lane;
  return cpu::shuffle("shuffle_up", file, line, v, lane >= delta ? lane - delta : lane);
}

template <int X> inline void warp_sum(float (&v)[X], CPU_SITE) {
  cpu::warp_reduce("warp_sum", file, line, v, [](float a, float b) { return a + b; });
}
template <int X> inline void warp_max(float (&v)[X], CPU_SITE) {
  cpu::warp_reduce("warp_max", file, line, v, [](float a, float b) { return a < b || a != a ? b : a; });
}
inline float warp_sum(float v, CPU_SITE) {
  float one[1] = {v};
  warp_sum(one, file, line);
  return one[0];
}
inline float warp_max(float v, CPU_SITE) {
  float one[1] = {v};
  warp_max(one, file, line);
  return one[0];
}

template <int X> inline void quad_max(float (&v)[X], CPU_SITE) { cpu::quad_max(file, line, v); }

inline unsigned pack_pair(float low, float high) {
  bf16 pair[2] = {from_float<bf16>(low), from_float<bf16>(high)};
  return __builtin_bit_cast(unsigned, pair);
}

template <int M, int N>
inline void mma_m16n8k16(float (&d)[M][N][4], const unsigned (&a)[M][4], const unsigned (&b)[N][2], CPU_SITE) {
  cpu::Mma<M, N> mine{d, a, b};
  cpu::meet("mma_m16n8k16", file, line, mine, cpu::mma_serve<M, N>);
}
template <int X> inline void ldmatrix_x4(unsigned (&r)[X][4], const void* const (&row)[X], CPU_SITE) {
  cpu::LoadMatrix<X> mine{r, row};
  cpu::meet("ldmatrix_x4", file, line, mine, cpu::ldmatrix_serve<X, false>);
}
template <int X> inline void ldmatrix_x4_trans(unsigned (&r)[X][4], const void* const (&row)[X], CPU_SITE) {
  cpu::LoadMatrix<X> mine{r, row};
  cpu::meet("ldmatrix_x4_trans", file, line, mine, cpu::ldmatrix_serve<X, true>);
}

inline void cp_async16(void* shared, const void* global, bool valid = true) { cpu::copy_later(shared, global, valid); }
inline void cp_async_commit() { cpu::commit_copies(); }
template <int N> inline void cp_async_wait() { cpu::deliver_copies(N); }

inline float fast_exp2(float x) { return exp2f(x); }
inline float fast_log2(float x) { return log2f(x); }
inline float fast_reciprocal(float x) { return 1 / x; }
inline float fast_exp(float x) { return expf(x); }
inline float saturate(float x) { return fminf(fmaxf(x, 0), 1); }
