#include "attention/general_kernels.cuh"

using Usual = Lssar<FullMaths, WholePower>;
using Any = Lssar<FullMaths, AnyPower<FullMaths>>;
[[maybe_unused]] static const bool entered[] = {enter_general_kernels<Usual>(Kind::lssar, PowerClass::usual),
                                                enter_general_kernels<Usual>(Kind::lssar, PowerClass::whole),
                                                enter_general_kernels<Any>(Kind::lssar, PowerClass::any)};
