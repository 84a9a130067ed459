// Names of settings to enumerators.
#pragma once
#include <string>

#include "runtime/error.h"

// The enumerator whose place in the table is the name's; another name is a user_error that lists the table.
template <class Enum, size_t N>
Enum from_name(const char* key, const char* const (&names)[N], const std::string& name) {
  std::string allowed;
  for (size_t i = 0; i < N; i++) {
    if (name == names[i]) return Enum(i);
    allowed += (i ? ", " : "") + std::string(names[i]);
  }
  user_error("config: %s = \"%s\" is unknown; choose one of %s.", key, name.c_str(), allowed.c_str());
}
