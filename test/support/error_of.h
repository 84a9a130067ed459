// The error of a call: "user: ..." (exit 2), "failure: ..." (exit 1), or "" if it succeeded.
#pragma once
#include <string>

#include "base/error.h"

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
