// The kernels of one family, for tests that call or replace them.
#pragma once
#include <cstring>

#include "attention/family.h"

template <class T> Family<T>& family_of(Kind kind, const char* name) {
  for (Family<T>& family : families_of<T>(kind))
    if (!strcmp(family.name, name)) return family;
  failure("attention: no %s kernels for %s in this build", name, kind_names[int(kind)]);
}
