// What attention needs beside its kernels: the memory it asks for, names, errors.
#include <gtest/gtest.h>

#include "attention/attention.h"
#include "test/support/error_of.h"

TEST(AttentionMemory, IsLinearInTheLength) {
  AttentionSettings s;
  if (attention_is_built(s.kind)) {
    EXPECT_EQ(attention_statistics(s, 64), 1);
  }
  size_t row = attention_backward_workspace({1, 1, 1, 1});
  EXPECT_EQ(row, 32u * 128);  // rows are counted in 128s
  EXPECT_EQ(attention_backward_workspace({3, 16384, 12, 64}), 32u * 3 * 16384 * 12);
}

TEST(AttentionDispatch, NamesAndErrors) {
  for (const char* name : kind_names) EXPECT_STREQ(kind_names[int(from_name<Kind>("KIND", kind_names, name))], name);
  expect_user_error([] { from_name<Kind>("KIND", kind_names, "lsar"); },
                    {"KIND = \"lsar\" is unknown; choose one of softmax, lssa"});
  expect_user_error([] { attention_check({}, 513, true); }, {"model.head_dim = 513"});
  expect_user_error([] { attention_check({.kind = Kind(std::size(kind_names))}, 64, true); },
                    {"has no kernels in this build"});
}
