// The OS threads of the CPU layer. The caller is worker 0 and starts at once; helpers join as they wake up.
// parallel_for(n, f) runs f(0) .. f(n - 1) in any order on the pool and returns when all are done; if some threw, the
// exception of the lowest index is rethrown. Inside a task or a kernel it runs in the calling thread.
#pragma once
#include <stdint.h>
#include <memory>
#include <type_traits>

namespace cpu {

using Task = void (*)(void* context, int64_t index);

// Number of workers, the caller included. One under ASan (see __shared__ in cuda_runtime.h).
int pool_threads();
void set_pool_threads(int n);  // n < 1: one per core available to the process
void pool_run(int64_t n, Task task, void* context);

template <class F> void parallel_for(int64_t n, F&& f) {
  using Function = std::remove_reference_t<F>;
  pool_run(
      n, [](void* context, int64_t i) { (*static_cast<Function*>(context))(static_cast<int>(i)); },
      const_cast<void*>(static_cast<const void*>(std::addressof(f))));
}

}  // namespace cpu

using cpu::parallel_for;
