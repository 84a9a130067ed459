// The families of attention's kernels: the table of families.cpp says for which devices and calls each is, and where it
// was measured; dispatch.cu asks it. Plain C++, for files that do not include CUDA.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

// What a choice among families looks at: the call, what a family has for its kind, and the device.
struct FamilyQuery {
  bool fp32 = false;
  int heads = 0, T = 0, D = 0, row_stride = 0;  // heads of all sequences
  bool has_bias = false, is_separate = false, hides_or_adds = false;
  bool aligned = false;               // arrays at multiples of 128 bytes, a bias at 16
  int widest = 0, widest_masked = 0;  // of Family
  bool on_cpu = false;
  int major = 0, multiprocessors = 0, l2_bytes = 0;  // of a GPU; major: of its compute capability
  bool has_instructions = false;                     // of Family
};

struct FamilyRow {
  const char* name;                          // attention.family; a folder, or one more family of it
  const char* devices;                       // on which it is fast, if other families are faster elsewhere
  bool (*suits)(const FamilyQuery&);         // whether this is such a device
  bool (*pays)(const FamilyQuery&);          // whether it is fast for such a call there; nullptr: always
  std::string (*lacks)(const FamilyQuery&);  // what the call needs and it does not have; "": nothing
  const char* measured_on;                   // device and commit, or nullptr: it runs only by its name
};
// Fastest first. Dispatch takes the first row that was measured, suits the device, pays and lacks nothing.
std::vector<FamilyRow>& family_rows();

// Whether `workers` that take a head at a time have one for at least this share of the time.
inline bool heads_occupy(int workers, int heads, double share) {
  int rounds = (heads + workers - 1) / workers;
  return heads >= share * rounds * workers;
}

// Bytes of the sums of dQ that `blocks` heads at work have (hopper/backward_heads.cuh).
inline size_t dq_sums_bytes(int blocks, int T) { return sizeof(float) * blocks * ((T + 127) / 128 * 128) * 64; }
