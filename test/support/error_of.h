// The text of a call's error, and the parts that a text must contain.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

// "user: ..." (exit 2), "failure: ..." (exit 1), or "" if the call succeeded.
template <class F> std::string error_of(F call) {
  try {
    call();
  } catch (const UserError& e) {
    return std::string("user: ") + e.what();
  } catch (const Failure& e) {
    return std::string("failure: ") + e.what();
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline void expect_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(has(text, part)) << "\"" << part << "\" is missing in: " << text;
}

// call must throw a UserError whose text contains all of parts.
template <class F> void expect_user_error(F call, const std::vector<std::string>& parts) {
  std::string error = error_of(call);
  EXPECT_TRUE(error.starts_with("user: ")) << "not a UserError: " << error;
  expect_has(error, parts);
}
