// Between attention and the gate: an operation on each head's output o, then its norm. With v the token's own value, as
// attention read it, and norm() as prepare.cuh has it for queries and keys,
//     y = norm(x),   x = o, silu(o) = o sigmoid(o), or (exclusive) o - (o . u) u with u = v / max(|v|, 1e-12)
// An exclusive x of at most 2^-16 of |o|, which is rounding, has y = 0 and no gradient if it is to be normalised.
// o stays as it was, because attention's backward pass reads it: y is computed again there. Formulas: README.md.
// Shapes: out, y, dout [B, T, H, D]; qkv, dqkv [B, T, 3, H, D] with rows qkv_stride apart. A group of 1 to 16 lanes has
// a row (b, t, h).
#pragma once
#include "attention/attention.h"

// y =. Floor: 2 N A elements moved, exclusive 3 N A.
template <class T> void output_forward(T* y, const T* out, const T* qkv, const AttentionCall<T>& call);

// dout: from the gradient of y to that of o, in place. along [B, T, H] = dx . u if exclusive, else not touched.
// Floor: 3 N A elements moved, exclusive 4 N A.
template <class T>
void output_backward(T* dout, float* along, const T* out, const T* qkv, const AttentionCall<T>& call);

// Exclusive: dqkv's values += the gradient by way of u, from dout and along as output_backward() left them; else
// nothing. Floor: 5 N A elements moved.
template <class T>
void output_backward_values(T* dqkv, const T* dout, const float* along, const T* out, const T* qkv,
                            const AttentionCall<T>& call);
