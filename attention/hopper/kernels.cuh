// Attention for Hopper (sm_90a): every kind, heads of up to 128 channels in bf16, as in tensor/kernels.cuh (the same
// policies, the same 7 products in the backward, no atomics), but with wgmma instead of mma.sync, the copy engine
// instead of cp.async, and a producer instead of barriers of the block. While one consumer works on its scores, the
// other's products run. Read tiles.cuh, roles.cuh, forward.cuh and backward.cuh, then the launchers here.
#pragma once
#include "attention/hopper/backward.cuh"
#include "attention/hopper/forward.cuh"

namespace {

// ---- launchers

// q, k and v are 3 H heads of one tensor.
inline TensorMap qkv_map(const bf16* x, const KernelShape& s) {
  return tensor_map(x, {s.B, s.T, 3 * s.H, s.D, s.T * s.qkv_stride, s.qkv_stride, size_t(s.D)}, BOX);
}
inline TensorMap out_map(const bf16* x, const KernelShape& s) {
  size_t A = size_t(s.H) * s.D;
  return tensor_map(x, {s.B, s.T, s.H, s.D, s.T * A, A, size_t(s.D)}, BOX);
}

// A block takes a whole multiprocessor. While another kernel holds some, as NCCL's do beside the backward pass, blocks
// without a place wait until others have ended, and the time doubles: so `spare` multiprocessors are left free. (Blocks
// could take their tiles from a counter instead, but that costs an atomic and a broadcast within the block for every
// tile, always.)
template <class Tile> dim3 hopper_grid(const KernelShape& s, int spare) {
  int most = std::max(1, device_properties().multiProcessorCount - spare);
  return dim3(std::min(most, (s.tiles(Tile::HELD) * s.H * s.B + 1) / 2));
}

template <class Policy, int DIM>
using ForwardTile = HopperTile<DIM, hopper_forward_size(DIM, Policy::SWEEPS, BY_PLACE<Policy>), 1, 0,
                               hopper_forward_in_turn(DIM, Policy::SWEEPS)>;
// The sums of dz that Biased takes leave registers for fewer queries, except for softmax (sigmoid would spill 24
// bytes).
template <class Policy, int DIM, class Mask>
using KeysTile = HopperTile<
    DIM, hopper_keys_size(DIM, Policy::GRADIENT_REGISTERS || (Mask::ADDS && (!Policy::RESCALES || BY_PLACE<Policy>))),
    2, Policy::ROW_VALUES, hopper_keys_in_turn(DIM)>;
// The formula of a file and the sums of dz, or of what is learned, beside each other leave registers for 64 keys.
template <class Policy, int DIM, class Mask>
using QueriesTile = HopperTile<DIM, hopper_queries_size(DIM, BY_PLACE<Policy> && (Mask::ADDS || Policy::LEARNED)), 2, 0,
                               hopper_queries_in_turn(DIM, Policy::GRADIENT_REGISTERS)>;

template <class Policy, class Mask, class Tile> void hopper_forward_by(const ForwardCall<bf16>& c) {
  KernelShape shape = kernel_shape<bf16>(c.call, {c.out, c.qkv});
  LAUNCH((attention_forward_hopper_kernel<Policy, Mask, Tile>), hopper_grid<Tile>(shape, c.call.spare_multiprocessors),
         dim3(Tile::THREADS), Tile::SHARED_BYTES, c.call.stream, qkv_map(c.qkv, shape), out_map(c.out, shape), c.stats,
         c.sink, c.settings, shape);
}
inline KernelShape backward_shape(const BackwardCall<bf16>& c) {
  KernelShape shape = kernel_shape<bf16>(c.call, {c.dqkv, c.dout, c.out, c.qkv});
  shape.row_pitch = workspace_rows(c.call.shape.T);
  return shape;
}
// The workspace has the row values already.
template <class Tile, class Kernel>
void hopper_backward_by(const char* name, Kernel kernel, const BackwardCall<bf16>& c, float* dz_sums) {
  KernelShape shape = backward_shape(c);
  launch_kernel(name, kernel, hopper_grid<Tile>(shape, c.call.spare_multiprocessors), dim3(Tile::THREADS),
                Tile::SHARED_BYTES, c.call.stream, qkv_map(c.dqkv, shape), out_map(c.dout, shape),
                qkv_map(c.qkv, shape), dz_sums, c.workspace.learned_sums, c.workspace.row_values, c.settings, shape,
                c.preparation);
}

template <class Policy, class Mask, class F> void with_hopper_width(int D, F f) {
  if constexpr (hopper_widest(Policy::GRADIENT_REGISTERS, Mask::ADDS) == 128) with_width<64, 128>(D, f);
  else with_width<64>(D, f);
}

// Floor: as tensor_forward's, 2 T^2 D FLOPs per head at the tensor cores' rate (lssar 4, evaluation 3).
template <class Policy, class Mask> void hopper_forward(const ForwardCall<bf16>& c) {
  with_hopper_width<Policy, Mask>(c.call.shape.D,
                                  [&]<int DIM>() { hopper_forward_by<Policy, Mask, ForwardTile<Policy, DIM>>(c); });
}

// Floor: 5 T^2 D FLOPs per head (FlashAttention's count); these kernels do 7.
template <class Policy, class Mask> void hopper_backward(const BackwardCall<bf16>& c) {
  write_row_values<bf16, Policy, Mask>(c, backward_shape(c));
  with_hopper_width<Policy, Mask>(c.call.shape.D, [&]<int DIM>() {
    using Keys = KeysTile<Policy, DIM, Mask>;
    hopper_backward_by<Keys>("attention_backward_keys_hopper_kernel",
                             attention_backward_keys_hopper_kernel<Policy, Mask, Keys>, c, c.workspace.dz_by_key);
    using Queries = QueriesTile<Policy, DIM, Mask>;
    hopper_backward_by<Queries>("attention_backward_queries_hopper_kernel",
                                attention_backward_queries_hopper_kernel<Policy, Mask, Queries>, c,
                                c.workspace.dz_by_query);
  });
}

// ---- the family

// The copy engine needs heads that begin at multiples of 16 bytes, rows that are whole heads apart, and arrays at
// multiples of 128 bytes (CUDA Programming Guide 4.11.2; the driver's own header asks for 16).
template <class Policy> bool hopper_supports(const AttentionCall<bf16>& call, Addresses arrays) {
  int D = call.shape.D;
  bool aligned = D % 8 == 0 && call.row_stride() % D == 0;
  for (const void* array : arrays) aligned = aligned && reinterpret_cast<size_t>(array) % 128 == 0;
  return aligned && D <= hopper_widest(Policy::GRADIENT_REGISTERS, call.settings.bias != Bias::none);
}

template <class File> bool add_hopper(Kind kind) {
  using Policies = PolicyOf<File, FastMaths>;
  Family<bf16> f = {.name = "hopper", .order = 1};
  f.suits_device = [] { return device_properties().major == 9; };
  f.supports = hopper_supports<typename Policies::Usual>;
  f.saved = Policies::Usual::SAVED, f.vectors = Policies::Usual::OUTPUTS - 1;
  f.forward = [](const ForwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(c, [&]<class Policy, class Mask>() { hopper_forward<Policy, Mask>(c); });
  };
  f.evaluate = [](const ForwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(
        c, [&]<class Policy, class Mask>() { hopper_forward<typename Policy::Evaluation, Mask>(c); });
  };
  f.backward = [](const BackwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(c, [&]<class Policy, class Mask>() { hopper_backward<Policy, Mask>(c); });
  };
  f.undoes_preparation = true;
  return add_family(kind, f);
}

}  // namespace
