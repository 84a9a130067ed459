// attention/kv_heads.cu: heads of keys and values that a group of query heads shares are copied, to the bit, and their
// gradients added in the order of the heads, which floats show; strides, odd sizes and further columns.
#include "attention/kv_heads.cuh"

#include <gtest/gtest.h>

#include "test/support/compare.h"
#include "test/support/device.h"

static const bool poisoned = (set_cpu_poison(true), true);  // reading unwritten memory gives NaN

template <class T> class KvHeads : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(KvHeads, StorageTypes);

TYPED_TEST(KvHeads, AreRepeatedAndAddedInOrder) {
  using T = TypeParam;
  for (auto [H, K] : {std::pair(1, 1), std::pair(4, 2), std::pair(6, 2), std::pair(3, 1), std::pair(5, 5)})
    for (int D : {1, 6, 8, 64})
      for (auto [more, padding, shift] : {std::tuple(0, 0, 0), std::tuple(16, 8, 0), std::tuple(3, 2, 1)}) {
        int narrow_used = (H + 2 * K) * D + more, wide_used = 3 * H * D + more;
        GroupedRows rows{5, H, K, D, more, narrow_used + padding, wide_used + padding};
        auto x = random_normal<T>(size_t(rows.N) * rows.narrow + shift, 1),
             dy = random_normal<T>(size_t(rows.N) * rows.wide + shift, 2);
        DeviceArray<T> narrow(x), dwide(dy), wide(dy.size()), dnarrow(x.size());
        repeat_heads<T>(wide + shift, narrow + shift, rows, 0);
        add_repeated_heads<T>(dnarrow + shift, dwide + shift, rows, 0);
        std::vector<T> y = wide.download(), dx = dnarrow.download();
        for (int n = 0; n < rows.N; n++) {
          std::vector<float> sums(rows.narrow);
          for (int c = 0; c < rows.wide; c++) {
            int part = c / (H * D), head = c % (H * D) / D;
            int from = c >= 3 * H * D ? c - 3 * H * D + (H + 2 * K) * D
                       : part == 0    ? c
                                      : (H + (part - 1) * K + head / (H / K)) * D + c % D;
            float expected = c < wide_used ? to_float(x[shift + size_t(n) * rows.narrow + from]) : 0;
            EXPECT_EQ(to_float(y[shift + size_t(n) * rows.wide + c]), expected)
                << H << " " << K << " " << D << " " << c;
            if (c < wide_used) sums[from] += to_float(dy[shift + size_t(n) * rows.wide + c]);
          }
          for (int c = 0; c < rows.narrow; c++)
            EXPECT_EQ(to_float(dx[shift + size_t(n) * rows.narrow + c]), to_float(from_float<T>(sums[c])))
                << H << " " << K << " " << D << " " << c;
        }
      }
}
