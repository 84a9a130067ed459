// Attention for Hopper (sm_90a): every kind, heads of up to 128 channels in bf16, as in tensor/kernels.cuh (the same
// policies, 7 products in the backward), but with wgmma instead of mma.sync, the copy engine instead of cp.async, and a
// producer instead of barriers of the block. While one consumer works on its scores, the other's products run. Where
// there are many heads and they are short, the backward pass is another: one kernel with 5 products. Read tiles.cuh,
// roles.cuh, forward.cuh, backward.cuh and backward_heads.cuh, then the launchers here.
#pragma once
#include "attention/hopper/backward_heads.cuh"
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
inline int most_blocks(int spare) { return std::max(1, device_properties().multiProcessorCount - spare); }
template <class Tile> dim3 hopper_grid(const KernelShape& s, int spare) {
  return dim3(std::min(most_blocks(spare), (s.tiles(Tile::HELD) * s.H * s.B + 1) / 2));
}

template <class Policy, int DIM, class Mask>
using ForwardTile = HopperTile<DIM, hopper_forward_size(DIM, Policy::SWEEPS, BY_POSITION<Policy>), 1, 0,
                               hopper_forward_in_turn(DIM, Policy::SWEEPS), Mask::ADDS>;
// The sums of dz that Biased takes leave registers for fewer queries, except for softmax (sigmoid would spill 24
// bytes); so does what OwnDocument asks of each key (softmax would spill 8).
template <class Policy, int DIM, class Mask>
using KeysTile = HopperTile<DIM,
                            hopper_keys_size(DIM, Policy::GRADIENT_REGISTERS || Mask::DOCUMENTS ||
                                                      (Mask::ADDS && (!Policy::RESCALES || BY_POSITION<Policy>))),
                            2, Policy::ROW_VALUES, hopper_keys_in_turn(DIM), Mask::ADDS>;
// The formula of a file and the sums of dz, or of what is learned, beside each other leave registers for 64 keys.
template <class Policy, int DIM, class Mask>
using QueriesTile = HopperTile<DIM, hopper_queries_size(DIM, BY_POSITION<Policy> && (Mask::ADDS || Policy::LEARNED)), 2,
                               0, hopper_queries_in_turn(DIM, Policy::GRADIENT_REGISTERS), Mask::ADDS>;

template <class Policy>
using HeadsTile = HopperTile<64, hopper_heads_size(Policy::FROM_WEIGHT), 2, Policy::ROW_VALUES, true, false, 2>;

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
static_assert(BOX == SUMMED_ROWS);
inline float* column_sums(const BackwardCall<bf16>& c) { return c.sums_columns ? c.workspace.column_sums : nullptr; }
// The workspace has the row values already.
template <class Tile, class Kernel>
void hopper_backward_by(const char* name, Kernel kernel, const BackwardCall<bf16>& c, float* dz_sums) {
  KernelShape shape = backward_shape(c);
  launch_kernel(name, kernel, hopper_grid<Tile>(shape, c.call.spare_multiprocessors), dim3(Tile::THREADS),
                Tile::SHARED_BYTES, c.call.stream, qkv_map(c.dqkv, shape), out_map(c.dout, shape),
                qkv_map(c.qkv, shape), dz_sums, c.workspace.learned_sums, column_sums(c), c.workspace.row_values,
                c.settings, shape, c.preparation);
}

template <class Policy, class Mask, class F> void with_hopper_width(int D, F f) {
  if constexpr (hopper_widest(Policy::GRADIENT_REGISTERS, Mask::ADDS || Mask::DOCUMENTS) == 128)
    with_width<64, 128>(D, f);
  else with_width<64>(D, f);
}

// Floor: as tensor_forward's, 2 T^2 D FLOPs per head at the tensor cores' rate (lssar 4, evaluation 3).
template <class Policy, class Mask> void hopper_forward(const ForwardCall<bf16>& c) {
  with_hopper_width<Policy, Mask>(
      c.call.shape.D, [&]<int DIM>() { hopper_forward_by<Policy, Mask, ForwardTile<Policy, DIM, Mask>>(c); });
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

inline int hopper_heads_blocks(const AttentionShape& s, int spare = 0) {  // at most those of the workspace
  return std::min(s.B * s.H, most_blocks(std::max(0, spare)));
}
// Floor: 5 T^2 D FLOPs per head, and that is what it does.
template <class Policy, class Mask> void hopper_heads_backward(const BackwardCall<bf16>& c) {
  using Tile = HeadsTile<Policy>;
  KernelShape shape = backward_shape(c);
  write_row_values<bf16, Policy, Mask>(c, shape);
  LAUNCH((attention_backward_heads_hopper_kernel<Policy, Mask, Tile>),
         dim3(hopper_heads_blocks(shape, c.call.spare_multiprocessors)), dim3(Tile::THREADS), Tile::SHARED_BYTES,
         c.call.stream, qkv_map(c.dqkv, shape), out_map(c.dout, shape), qkv_map(c.qkv, shape), column_sums(c),
         c.workspace.dq_sums, c.qkv, c.workspace.row_values, c.settings, shape, c.preparation);
}

// ---- the families

template <class File> bool add_hopper(Kind kind) {
  using Policies = PolicyOf<File, FastMaths>;
  constexpr int GRADIENT_REGISTERS = Policies::Usual::GRADIENT_REGISTERS;
  Family<bf16> f = {.name = "hopper",
                    .widest = hopper_widest(GRADIENT_REGISTERS, false),
                    .widest_masked = hopper_widest(GRADIENT_REGISTERS, true)};
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
  f.finishes_gradients = true;
  bool added = add_family(kind, f);
  // Gradients of learned numbers are sums over a query's keys, and no thread there has all keys of a query.
  if constexpr (Policies::Usual::LEARNED == 0) {
    f.name = "hopper_heads";
    f.backward = [](const BackwardCall<bf16>& c) {
      Policies::choose(c.settings, [&]<class Policy>() {
        if (c.call.hides_or_adds()) hopper_heads_backward<Policy, Window>(c);
        else hopper_heads_backward<Policy, Causal>(c);
      });
    };
    f.backward_workspace = [](const AttentionShape& s) { return dq_sums_bytes(hopper_heads_blocks(s), s.T); };
    added = add_family(kind, f);
  }
  return added;
}

}  // namespace
