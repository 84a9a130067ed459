// Refuses a CPU that lacks instructions for which the program was built (make MARCH=...), before any other code runs:
// the Makefile compiles this file for every CPU and links it first. It calls the C library alone, because an inline
// function would be the copy of another object, with that one's instructions.
#include <string.h>
#include <unistd.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

// make writes this file. BUILT_FOR says what MARCH stands for; NEEDED is NEEDS("NAME") for each feature that
// scripts/lib/cpu_features.sh names.
#include "built_for.inc"

#if defined(__aarch64__)
// Bits of Linux's asm/hwcap.h, by number, since headers may be older than the compiler. A name that is not listed, as
// of an instruction that compilers do not choose, is not asked for.
static bool cpu_has(const char* name) {
  static constexpr struct {
    const char* name;
    int word, bit;
  } features[] = {{"atomics", AT_HWCAP, 8},
                  {"complex", AT_HWCAP, 14},
                  {"qrdmx", AT_HWCAP, 12},
                  {"rcpc", AT_HWCAP, 15},
                  {"dotprod", AT_HWCAP, 20},
                  {"fp16_scalar_arithmetic", AT_HWCAP, 9},
                  {"fp16_vector_arithmetic", AT_HWCAP, 10},
                  {"fp16_fml", AT_HWCAP, 23},
                  {"sve", AT_HWCAP, 22},
                  {"sve2", AT_HWCAP2, 1},
                  {"frint", AT_HWCAP2, 8},
                  {"matmul_int8", AT_HWCAP2, 13},
                  {"bf16_vector_arithmetic", AT_HWCAP2, 14}};
  for (auto& feature : features)
    if (strcmp(feature.name, name) == 0) return getauxval(feature.word) >> feature.bit & 1;
  return true;
}
#define EVERY_CPU "armv8-a"
#else
#define cpu_has(name) __builtin_cpu_supports(name)  // takes literals alone
#define EVERY_CPU "x86-64-v3 (CPUs since about 2015) or MARCH=x86-64"
#endif

static char said[8192];
static void say(const char* text) { strncat(said, text, sizeof said - 1 - strlen(said)); }

// What is wrong, a line; "" if nothing is.
extern "C" [[gnu::visibility("default")]] const char* plusgpt_processor_lacks() {
#if !defined(__aarch64__)
  __builtin_cpu_init();
#endif
  said[0] = 0;
  auto name = [&](const char* feature) {
    say(said[0] ? ", " : "this program was built for another CPU, " BUILT_FOR ": the one here lacks its ");
    say(feature);
  };
#define NEEDS(NAME) \
  if (!cpu_has(NAME)) name(NAME);
  NEEDED
#undef NEEDS
  if (said[0]) say("; build it here by make, or for both by make MARCH=" EVERY_CPU "\n");
  return said;
}

#ifndef PLUSGPT_LIBRARY  // of a library, which can refuse nothing, the caller asks that first (pytorch/)
static void check_processor() {
  const char* text = plusgpt_processor_lacks();
  if (text[0] && write(STDERR_FILENO, text, strlen(text)) != 0) _exit(2);
}
[[gnu::section(".preinit_array"), gnu::used]] static void (*const before_constructors)() = check_processor;
#endif
