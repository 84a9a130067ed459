#include "attention/tensor_kernels.cuh"

using Usual = Lssar<FastMaths, FixedPower<15>>;
using Any = Lssar<FastMaths, AnyPower<FastMaths>>;
[[maybe_unused]] static const bool entered[] = {enter_tensor_kernels<Usual>(Kind::lssar, PowerClass::usual),
                                                enter_tensor_kernels<Any>(Kind::lssar, PowerClass::whole),
                                                enter_tensor_kernels<Any>(Kind::lssar, PowerClass::any)};
